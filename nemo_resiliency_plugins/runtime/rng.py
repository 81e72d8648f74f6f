"""Random number generators of this process: Python's, NumPy's if it is loaded, torch's on CPU and on each GPU."""

from __future__ import annotations

import json
import random
import sys
from typing import Any


def capture() -> dict[str, Any]:
    """The state of all generators, in types that ``torch.load(weights_only=True)`` accepts."""
    import torch

    return {
        "python": json.dumps(random.getstate()),
        "numpy": _numpy_state(),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
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


def _numpy_state() -> str | None:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    kind, keys, *rest = numpy.random.get_state(legacy=True)
    return json.dumps([kind, keys.tolist(), *rest])


class Generators:
    """The state of the generators that a step draws from, kept in memory; cheap enough for each step."""

    def __init__(self) -> None:
        import torch

        numpy = sys.modules.get("numpy")
        self._python = random.getstate()
        self._numpy = None if numpy is None else numpy.random.get_state()
        self._torch = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None

    def put_back(self) -> None:
        import torch

        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)
        torch.set_rng_state(self._torch)
        if self._cuda is not None:
            torch.cuda.set_rng_state(self._cuda)
