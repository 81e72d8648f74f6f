"""Running the forward and backward passes of a step, and putting back what they have changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from nemo_resiliency_plugins.errors import ConfigError
from nemo_resiliency_plugins.runtime.rerun.ahead import BackwardCalls, Root
from nemo_resiliency_plugins.runtime.rerun.gradients import local_part

if TYPE_CHECKING:
    import torch

ForwardBackward = Callable[..., Any]


@dataclasses.dataclass(frozen=True, eq=False)
class Loss:
    """A number or a detached tensor of no dimension; ``root`` has its value before the backward pass."""

    value: Any
    root: Root | None = None

    @property
    def seen(self) -> Any:
        """What is looked at."""
        return self.value if self.root is None else self.root.value


@dataclasses.dataclass(frozen=True)
class Done:
    """``losses`` of the micro-batches; ``loss`` is their sum, None where there are none."""

    losses: list[Loss]

    @property
    def loss(self) -> Any:
        values = [each.value for each in self.losses]
        return sum(values[1:], values[0]) if values else None


class Passes:
    """Calls the user's function once for each micro-batch; ``number`` is that of the running one.

    ``calls`` notes its backward passes, for what can be done while they run.
    """

    def __init__(self, calls: BackwardCalls | None = None) -> None:
        self.number: int | None = None
        self._calls = calls

    def run(self, forward_backward: ForwardBackward, micro_batches: Sequence[Any]) -> Done:
        """Raises ConfigError where the function does not return losses."""
        losses: list[Loss] = []
        try:
            with self._calls.noted() if self._calls else nullcontext():
                for number in range(len(micro_batches) or 1):
                    self.number = number
                    returned = forward_backward(*micro_batches[number : number + 1])
                    losses += self._losses(returned, copied=len(micro_batches) > 1)
        finally:
            self.number = None
        return Done(losses)

    def _losses(self, returned: Any, *, copied: bool) -> list[Loss]:
        """``copied``: the next micro-batch may use the same memory, as those of a CUDA graph do."""
        several = returned if isinstance(returned, (list, tuple)) else [returned]
        values = [_plain(each) for each in several]
        if copied:
            values = [each.clone() if hasattr(each, "clone") else each for each in values]
        roots = [self._calls.of(each) if self._calls else None for each in several]
        return [Loss(value, root) for value, root in zip(values, roots, strict=True)]


def _plain(loss: Any) -> Any:
    if hasattr(loss, "full_tensor"):
        loss = loss.full_tensor()
    if hasattr(loss, "detach"):
        loss = loss.detach()
        if loss.numel() == 1:
            return loss.reshape(())
    elif isinstance(loss, (int, float)):
        return loss
    raise _not_a_loss(loss)


def _not_a_loss(value: Any) -> ConfigError:
    rule = "the function must return the loss of its micro-batch, one number, or a list of losses"
    return ConfigError("session.checked", type(value).__name__, rule, "Return loss after loss.backward().")


class Trace:
    """Where bad gradients come from, as far as one small parameter of each model tells.

    They spread to the layers before, so it is an early one. Its gradient is looked at before DDP reduces it, for the
    price of one small kernel in each micro-batch. FSDP2 calls no hooks of its parameters.
    """

    def __init__(self, models: Sequence[torch.nn.Module], passes: Passes) -> None:
        self._passes = passes
        self._sums: list[tuple[int, torch.Tensor]] = []
        self._hooks = [each.register_hook(self._note) for each in map(_early_and_small, models) if each is not None]

    def begin(self) -> None:
        """Forget the run before."""
        self._sums.clear()

    def sources(self) -> list[int]:
        """The micro-batches in which this rank's own gradients were bad; waits for the device."""
        return sorted({number for number, total in self._sums if not bool(total.isfinite())})

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _note(self, gradient: torch.Tensor) -> None:
        if self._passes.number is not None:
            self._sums.append((self._passes.number, local_part(gradient.detach()).float().sum()))


def _early_and_small(model: torch.nn.Module) -> torch.nn.Parameter | None:
    """The first vector among the parameters, or the first parameter."""
    trained = [each for each in model.parameters() if each.requires_grad]
    return next((each for each in trained if each.ndim == 1), trained[0] if trained else None)


@contextmanager
def own_gradients(parameters: Sequence[torch.Tensor], passes: Passes) -> Iterator[set[int]]:
    """The micro-batches in which this rank's own gradients are NaN or Inf, before any reduction.

    Synchronises the device for each parameter. FSDP2 calls no hooks of its parameters, and gives an empty set.
    """
    bad: set[int] = set()

    def look(gradient: torch.Tensor) -> None:
        if passes.number is not None and not bool(local_part(gradient).isfinite().all()):
            bad.add(passes.number)

    hooks = [each.register_hook(look) for each in parameters if each.requires_grad]
    try:
        yield bad
    finally:
        for hook in hooks:
            hook.remove()
