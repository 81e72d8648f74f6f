"""What hooks on modules and optimizers see of a step, on a clock that the work itself moves on."""

from __future__ import annotations

import copy
import functools
import io
import itertools
from collections.abc import Callable, Iterator
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
        self.now += 0.25  # clipping
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
        if result.requires_grad:
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
    yield made
    made.close()


def test_each_phase_has_its_seconds(work: Work, phases: Phases) -> None:
    assert work.step(phases, after=0.5) == {
        "data": 1.0,
        "forward": 2.0,
        "backward": 3.0,
        "optimizer": 0.0,
        "other": 0.75,
    }


def test_micro_batches_add_up(work: Work, phases: Phases) -> None:
    found = work.step(phases, micro_batches=3)
    assert (found["data"], found["forward"], found["backward"]) == (3.0, 6.0, 9.0)


def test_two_models_with_an_optimizer_each_add_up(work: Work) -> None:
    other = Work()
    other.model[1].work[0] = work
    phases = Phases([work.model, other.model], [work.optimizer, other.optimizer], lambda: work.now)
    phases.step_begins()
    for each in (work, other):
        work.now += 1.0
        each.forward_backward()
        each.optimizer.step()
    assert phases.step_ends() == [1.0, 4.0, 6.0, 0.0, 1.0]
    phases.close()


def test_a_forward_pass_that_leads_to_no_backward_pass_is_no_backward(work: Work, phases: Phases) -> None:
    phases.step_begins()
    with torch.no_grad():
        work.model(torch.ones(2, 4))
    work.now += 5.0
    assert phases.step_ends() is None
    phases.step_begins()
    with torch.no_grad():
        work.model(torch.ones(2, 4))
    work.now += 1.0
    work.forward_backward()
    assert phases.step_ends() == [1.0, 4.0, 3.0, 0.0, 0.0]


def test_a_step_without_a_backward_pass_does_not_count_and_the_next_one_does(work: Work, phases: Phases) -> None:
    phases.step_begins()
    assert phases.step_ends() is None
    assert work.step(phases)["backward"] == 3.0


def test_a_backward_pass_that_raises_leaves_the_next_step_whole(work: Work, phases: Phases) -> None:
    phases.step_begins()
    output = work.model(torch.ones(2, 4))
    work.model[0].weight.register_hook(fail_once())
    with pytest.raises(ZeroDivisionError):
        output.sum().backward()
    assert phases.step_ends() is None
    assert work.step(phases)["backward"] == 3.0


def fail_once() -> Callable[[torch.Tensor], None]:
    left = [1]

    def hook(gradient: torch.Tensor) -> None:
        if left:
            1 / (left.pop() - 1)

    return hook


def test_a_parameter_that_gets_no_gradient_any_more_costs_one_step(work: Work, phases: Phases) -> None:
    work.model[2].bias.requires_grad_(False)
    assert work.step(phases) is None
    assert work.step(phases)["backward"] == 3.0


@pytest.mark.parametrize("wrap", [tuple, lambda items: {"out": {"nested": [*items]}}], ids=["tuple", "dict"])
def test_outputs_of_any_shape_lead_back(wrap: Callable[[list[torch.Tensor]], Any]) -> None:
    class Shaped(nn.Linear):
        def forward(self, value: torch.Tensor) -> Any:
            kept.append(super().forward(value))
            return wrap([kept[-1], torch.ones(1)])

    kept: list[torch.Tensor] = []
    model = Shaped(2, 2)
    phases = Phases([model], [], functools.partial(next, itertools.count()))
    model.bias.requires_grad_(False)  # its gradient would do
    for _ in range(2):
        phases.step_begins()
        model(torch.ones(1, 2))
        kept[-1].sum().backward()
        seconds = phases.step_ends()
    assert seconds == [1.0, 1.0, 1.0, 0.0, 1.0]
    phases.close()


def test_copies_and_pickles_of_a_model_work_and_watch_nothing() -> None:
    model = nn.Linear(4, 1)
    watched = Phases([model], [], functools.partial(next, itertools.count()))
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    others = [copy.deepcopy(model), torch.load(buffer, weights_only=False)]
    watched.step_begins()
    for other in others:
        other(torch.ones(2, 4)).sum().backward()
    assert watched.step_ends() is None
    watched.close()


def test_nothing_is_left_on_a_closed_model(work: Work, phases: Phases) -> None:
    phases.close()
    assert not work.model._forward_hooks
    assert not work.model._forward_pre_hooks
    assert not work.optimizer._optimizer_step_post_hooks


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
    assert seconds == ([1.0, 1.0, 1.0, 0.0, 1.0] if how == "around" else [1.0, 0.0, 0.0, 0.0, 1.0])
    phases.close()
