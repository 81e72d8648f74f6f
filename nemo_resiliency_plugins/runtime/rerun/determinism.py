"""Steps that run twice from the same state, and how much their results differ."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nemo_resiliency_plugins.runtime.agreement import Ranks
from nemo_resiliency_plugins.runtime.events import EventLog
from nemo_resiliency_plugins.runtime.log import line, logger
from nemo_resiliency_plugins.runtime.rerun.before import Before
from nemo_resiliency_plugins.runtime.rerun.looking import Looking
from nemo_resiliency_plugins.runtime.rerun.replay import ForwardBackward, Passes
from nemo_resiliency_plugins.runtime.rerun.results import difference

if TYPE_CHECKING:
    import torch


@dataclasses.dataclass
class Difference:
    """Between two runs of a step on one rank: the largest relative ones, and how many parameters' gradients differ."""

    loss: float = 0.0
    gradient: float = 0.0
    parameters: int = 0

    @property
    def is_none(self) -> bool:
        return self.loss == 0.0 and self.parameters == 0

    def raise_to(self, other: Difference) -> None:
        """Take the larger of each."""
        for field in dataclasses.fields(self):
            setattr(self, field.name, max(getattr(self, field.name), getattr(other, field.name)))


class Determinism:
    """The second run is the one that the training goes on with: it begins from the same state as the first."""

    def __init__(self, models: Sequence[torch.nn.Module], ranks: Ranks, events: EventLog, *, interval: int) -> None:
        self._before, self._passes = Before(models), Passes()
        self._looking = Looking()
        self._ranks, self._events, self._interval = ranks, events, interval
        self._steps = self._differing = 0
        self._worst = Difference()

    def run(self, step: int, forward_backward: ForwardBackward, micro_batches: Sequence[Any]) -> Any:
        """Collective. The loss of the step."""
        if step % self._interval:
            return self._passes.run(forward_backward, micro_batches).loss
        self._before.capture()
        first = self._looking.look(self._passes.run(forward_backward, micro_batches).losses)
        gradients = [None if each.grad is None else each.grad.clone() for each in self._before.parameters]
        self._before.restore()
        done = self._passes.run(forward_backward, micro_batches)
        second = self._looking.look(done.losses)
        mine = Difference(max(map(difference, first, second), default=0.0))
        self._compare(gradients, mine)
        self._note(step, [Difference(**fields) for fields in self._ranks.gather(dataclasses.asdict(mine))])
        return done.loss

    def loop_ends(self) -> None:
        """Sum up."""
        if self._ranks.rank == 0 and self._steps:
            worst = self._worst
            text = (
                f"determinism: {self._differing} of {self._steps} steps that ran twice differed; largest relative "
                f"difference {worst.loss:.3g} in the loss, {worst.gradient:.3g} in the gradients"
            )
            logger().info(line(0, text))

    def _compare(self, first: Sequence[torch.Tensor | None], into: Difference) -> None:
        for before, parameter in zip(first, self._before.parameters, strict=True):
            if before is not None and parameter.grad is not None:
                relative = _difference(before, parameter.grad)
                into.parameters += relative > 0
                into.gradient = max(into.gradient, relative)

    def _note(self, step: int, by_rank: Sequence[Difference]) -> None:
        differing = [rank for rank, each in enumerate(by_rank) if not each.is_none]
        worst = Difference()
        for each in by_rank:
            worst.raise_to(each)
        self._steps += 1
        self._differing += bool(differing)
        self._worst.raise_to(worst)
        if self._ranks.rank == 0:
            fields = {"max_loss_difference": worst.loss, "max_gradient_difference": worst.gradient}
            self._events.emit("determinism", step=step, ranks=differing, parameters=worst.parameters, **fields)
            if differing:
                text = f"determinism: step {step} gave other results the second time on ranks {differing}: {worst}"
                logger().info(line(0, text))


def _difference(one: Any, other: Any) -> float:
    """The largest difference between elements, relative to the largest element; infinite where one is no number."""
    import torch

    a, b = (each.to_local() if hasattr(each, "to_local") else each for each in (one, other))
    a, b = (each.to_dense() if each.is_sparse else each for each in (a, b))
    a, b = (torch.view_as_real(each) if each.is_complex() else each for each in (a, b))
    if torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)) and torch.equal(a.isnan(), b.isnan()):
        return 0.0
    gap = (a.double() - b.double()).abs().max()
    largest = torch.maximum(a.double().abs().max(), b.double().abs().max())
    relative = float(gap / largest)
    return relative if relative == relative else float("inf")
