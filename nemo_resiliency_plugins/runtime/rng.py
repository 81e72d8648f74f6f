"""Random number generators of this process: of Python, NumPy if it is loaded, torch on CPU and on each GPU, and what
Megatron-Core keeps for the parallel parts of a model."""

from __future__ import annotations

import json
import random
import sys
from typing import Any

MEGATRON = "megatron.core.tensor_parallel.random"


def capture() -> dict[str, Any]:
    """The state of all generators, in types that ``torch.load(weights_only=True)`` accepts."""
    import torch

    return {
        "python": json.dumps(random.getstate()),
        "numpy": _numpy_state(),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
        "megatron": _megatron_states(),
    }


def restore(state: dict[str, Any]) -> None:
    """Put back what :func:`capture` gave."""
    import torch

    version, words, gauss = json.loads(state["python"])
    random.setstate((version, tuple(words), gauss))
    if state["numpy"] is not None:
        import numpy

        kind, keys, position, has_gauss, cached = json.loads(state["numpy"])
        numpy.random.set_state((kind, numpy.array(keys, dtype=numpy.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])
    _set_megatron_states(state.get("megatron", {}))


def _numpy_state() -> str | None:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    kind, keys, *rest = numpy.random.get_state(legacy=True)
    return json.dumps([kind, keys.tolist(), *rest])


def _megatron_states() -> dict[str, Any]:
    """By name; a graph-safe tracker keeps generators, which go on in place, another one the states themselves."""
    tracker = _megatron_tracker()
    states = {} if tracker is None else tracker.get_states()
    return {name: each.get_state() if hasattr(each, "get_state") else each for name, each in states.items()}


def _set_megatron_states(states: dict[str, Any]) -> None:
    tracker = _megatron_tracker()
    if tracker is None or not states:
        return
    now = tracker.get_states()
    for name, state in states.items():
        if hasattr(now.get(name), "set_state"):
            now[name].set_state(state)
        else:
            now[name] = state
    tracker.set_states(now)


def _megatron_tracker() -> Any:
    """None as long as Megatron-Core has none: its own getter would make one, of a kind that nobody has asked for."""
    return getattr(sys.modules.get(MEGATRON), "_CUDA_RNG_STATE_TRACKER", None)


class Generators:
    """The state of the generators that a step draws from, kept in memory; cheap enough for each step."""

    def __init__(self) -> None:
        import torch

        numpy = sys.modules.get("numpy")
        self._python = random.getstate()
        self._numpy = None if numpy is None else numpy.random.get_state()
        self._torch = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
        self._megatron = _megatron_states()

    def put_back(self) -> None:
        import torch

        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)
        torch.set_rng_state(self._torch)
        if self._cuda is not None:
            torch.cuda.set_rng_state(self._cuda)
        _set_megatron_states(self._megatron)
