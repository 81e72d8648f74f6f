"""What hooks on modules and optimizers see of a step, on a clock that the work itself moves on."""

from __future__ import annotations

import copy
import functools
import io
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from nemo_resiliency_plugins.runtime.stragglers.phases import PHASES, Phases


class Work:
    """A clock, and modules that take their seconds on it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.model = nn.Sequential(nn.Linear(4, 4), Busy(self), nn.Linear(4, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.optimizer.register_step_pre_hook(lambda *_: None)

    def forward_backward(self) -> None:
        self.model(torch.ones(2, 4)).sum().backward()

    def step(self, phases: Phases, *, data: float = 1.0, micro_batches: int = 1, after: float = 0.0) -> Any:
        phases.step_begins()
        for _ in range(micro_batches):
            self.now += data
            self.forward_backward()
        self.now += 10.0  # clipping, or waiting for the gradients of others
        self.optimizer.step()
        self.now += after
        seconds = phases.step_ends()
        return None if seconds is None else dict(zip(PHASES, seconds, strict=True))


class Busy(nn.Module):
    def __init__(self, work: Work) -> None:
        super().__init__()
        self.work = [work]

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        self.work[0].now += 2.0
        result = value * 1.0
        result.register_hook(lambda gradient: self._take(3.0))
        return result

    def _take(self, seconds: float) -> None:
        self.work[0].now += seconds


@pytest.fixture
def work() -> Work:
    return Work()


@pytest.fixture
def phases(work: Work) -> Iterator[Phases]:
    made = Phases([work.model], [work.optimizer], lambda: work.now)
    assert work.step(made) is None
    yield made
    made.close()


def test_each_phase_has_its_seconds_and_waiting_is_none(work: Work, phases: Phases) -> None:
    assert work.step(phases, after=0.5) == {
        "data": 1.0,
        "forward": 2.0,
        "backward": 3.0,
        "optimizer": 0.0,
        "other": 0.5,
    }


def test_micro_batches_add_up(work: Work, phases: Phases) -> None:
    found = work.step(phases, micro_batches=3)
    assert (found["data"], found["forward"], found["backward"]) == (3.0, 6.0, 9.0)


def test_a_gradient_that_stays_away_is_looked_for_again(work: Work, phases: Phases) -> None:
    [last] = [each for each in work.model.parameters() if each._post_accumulate_grad_hooks]
    last.requires_grad_(False)
    assert work.step(phases) is None
    assert work.step(phases) is None
    assert work.step(phases)["backward"] == 3.0


def test_one_gradient_is_watched_after_the_search(work: Work, phases: Phases) -> None:
    hooks = [parameter._post_accumulate_grad_hooks for parameter in work.model.parameters()]
    assert sum(len(each or {}) for each in hooks) == 1


def test_copies_and_pickles_of_a_model_work_and_watch_nothing() -> None:
    model = nn.Linear(4, 1)
    watched = Phases([model], [], functools.partial(next, itertools.count()))
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    others = [copy.deepcopy(model), torch.load(buffer, weights_only=False)]
    watched.step_begins()
    watched.step_ends()
    watched.step_begins()
    for other in others:
        other(torch.ones(2, 4)).sum().backward()
    assert watched.step_ends() == [1.0, 0.0, 0.0, 0.0, 0.0]
    watched.close()


def test_nothing_is_left_on_a_closed_model(work: Work, phases: Phases) -> None:
    phases.close()
    assert not work.model._forward_hooks
    assert not work.model._forward_pre_hooks
    assert not work.optimizer._optimizer_step_post_hooks
    assert all(not parameter._post_accumulate_grad_hooks for parameter in work.model.parameters())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("how", ["in place", "around", "below"])
def test_a_model_that_torch_compiles_stays_one_graph(how: str) -> None:
    plain = nn.Linear(4, 1)
    around = torch.compile(plain, fullgraph=True, backend="eager")
    if how == "in place":
        plain.compile(fullgraph=True, backend="eager")
    attached, called = {"in place": (plain, plain), "around": (around, around), "below": (plain, around)}[how]
    phases = Phases([attached], [], functools.partial(next, itertools.count()))
    for _ in range(3):
        phases.step_begins()
        called(torch.ones(2, 4)).sum().backward()
        seconds = phases.step_ends()
    assert seconds == ([1.0, 1.0, 1.0, 0.0, 0.0] if how == "around" else [1.0, 0.0, 0.0, 0.0, 0.0])
    phases.close()
