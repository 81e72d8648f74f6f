"""Random numbers that are kept beside those of Python, NumPy and torch."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nemo_resiliency_plugins.runtime import rng


class Tracker:
    """Keeps states by name as Megatron-Core's does, which needs a GPU to be filled."""

    def __init__(self, states: dict[str, Any]) -> None:
        self._states = states

    def get_states(self) -> dict[str, Any]:
        return dict(self._states)

    def set_states(self, states: dict[str, Any]) -> None:
        self._states = states

    def draw(self) -> float:
        """As with its state set, of which it keeps a new one; generators go on in place."""
        held = self._states["model"]
        generator = held if isinstance(held, torch.Generator) else torch.Generator().set_state(held)
        value = float(torch.rand((), generator=generator))
        if not isinstance(held, torch.Generator):
            self._states["model"] = generator.get_state()
        return value


@pytest.mark.parametrize("held", [torch.Generator(), torch.Generator().get_state()], ids=["graph-safe", "states"])
def test_the_states_of_a_tracker_are_put_back_and_restored(monkeypatch: pytest.MonkeyPatch, held: Any) -> None:
    tracker = Tracker({"model": held})
    monkeypatch.setitem(sys.modules, rng.MEGATRON, SimpleNamespace(_CUDA_RNG_STATE_TRACKER=tracker))
    tracker.draw()
    in_memory, in_a_checkpoint = rng.Generators(), rng.capture()
    first = tracker.draw()
    for _ in range(2):
        in_memory.put_back()
        assert tracker.draw() == first
    rng.restore(in_a_checkpoint)
    assert tracker.draw() == first


def test_a_tracker_that_is_not_there_yet_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, rng.MEGATRON, SimpleNamespace(_CUDA_RNG_STATE_TRACKER=None))
    state = rng.capture()
    assert state["megatron"] == {}
    rng.restore(state)


def test_a_checkpoint_of_an_older_version_can_be_restored() -> None:
    state = rng.capture()
    del state["megatron"]
    rng.restore(state)
