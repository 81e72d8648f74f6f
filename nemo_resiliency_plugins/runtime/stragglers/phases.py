"""What a rank does in each step, and for how long: seen by hooks on the attached modules and optimizers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

PHASES = ("data", "forward", "backward", "optimizer", "other")
DATA, FORWARD, BACKWARD, OPTIMIZER, OTHER, _WAITING, _AFTER = range(7)
"""Places in a list of seconds.

The last two: the gradients of this rank are there and DDP waits for those of the others, which is no work; and what
comes after a backward pass, which belongs to the data of the next one, or to *other* if the optimizer follows.
"""


class Phases:
    """Splits every step into :data:`PHASES`, in seconds of ``clock``.

    *data* goes from the begin of the step to a forward pass, *backward* to the rank's own last gradient, and *other*
    is the rest. A step counts if it has a forward and a backward pass of one of ``models``, however many there are.

    The end of a backward pass is a callback of autograd's engine (torch 2.5 to 2.13), asked for when a gradient comes:
    before DDP asks for its own, in which it waits in C++. The gradient is that of each module's last parameter; once a
    pass has ended without one of these (FSDP2, unused or frozen parameters), those of the modules' outputs, which cost
    10 us a step more. Of modules that torch compiles with their hooks, all up to that end is *data*: the hooks do
    nothing there, so that they break no graph.
    """

    def __init__(
        self,
        models: Sequence[torch.nn.Module] = (),
        optimizers: Sequence[torch.optim.Optimizer] = (),
        clock: Callable[[], float] = float,
    ) -> None:
        from torch import is_grad_enabled
        from torch.autograd.variable import Variable
        from torch.compiler import is_compiling

        self._clock, self._is_compiling, self._leads_back = clock, is_compiling, is_grad_enabled
        self._call_at_the_end: Callable[[Callable[[], None]], None] = Variable._execution_engine.queue_callback
        self._spent = [0.0] * 7
        self._phase, self._since = OTHER, 0.0
        self._is_in_backward = self._counts = self._by_outputs = False
        self._hooks: list[Any] = []
        for model in models:
            for parameter in [each for each in model.parameters() if each.requires_grad and each.is_leaf][-1:]:
                self._hooks.append(parameter.register_post_accumulate_grad_hook(self._gradient_comes))
            self._hooks.append(model.register_forward_pre_hook(self._forward_begins, prepend=True))
            self._hooks.append(model.register_forward_hook(self._forward_ends))
        for optimizer in optimizers:
            self._hooks.append(optimizer.register_step_pre_hook(self._optimizer_begins))
            self._hooks.append(optimizer.register_step_post_hook(self._optimizer_ends))

    def __reduce__(self) -> tuple[type[Phases], tuple[()]]:
        """A copied or pickled model brings its hooks along: those of the copy watch nothing."""
        return Phases, ()

    def step_begins(self) -> None:
        self._spent = [0.0] * 7
        self._is_in_backward = self._counts = False
        self._phase, self._since = DATA, self._clock()

    def step_ends(self) -> list[float] | None:
        """Seconds of each phase; None for a step that does not count."""
        self._leave_backward()
        self._enter(OTHER)
        return self._spent[: len(PHASES)] if self._counts else None

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _enter(self, phase: int) -> None:
        now = self._clock()
        self._spent[self._phase] += now - self._since
        self._phase, self._since = phase, now

    def _leave_backward(self) -> None:
        """For the optimizer, or the end of the step."""
        if self._phase == _AFTER:
            self._phase = OTHER
        elif self._phase == BACKWARD:
            self._by_outputs = True  # its end was not seen

    def _forward_begins(self, *_: Any) -> None:
        if not self._is_compiling():
            if self._phase == _AFTER:
                self._phase = DATA
            self._enter(FORWARD)

    def _forward_ends(self, model: Any, arguments: Any, output: Any) -> None:
        if self._is_compiling():
            return
        leads_back = self._leads_back()
        if self._by_outputs and leads_back:
            for tensor in _tensors(output):
                if tensor.requires_grad:
                    tensor.register_hook(self._gradient_comes)
        self._enter(BACKWARD if leads_back else DATA)

    def _gradient_comes(self, _: torch.Tensor) -> None:
        if not self._is_in_backward and not self._is_compiling():
            self._is_in_backward = True
            self._call_at_the_end(self._own_backward_ends)

    def _own_backward_ends(self) -> None:
        self._enter(_WAITING)
        self._call_at_the_end(self._backward_ends)

    def _backward_ends(self) -> None:
        self._is_in_backward, self._counts = False, True
        self._enter(_AFTER)

    def _optimizer_begins(self, *_: Any) -> None:
        if not self._is_compiling():
            self._leave_backward()
            self._enter(OPTIMIZER)

    def _optimizer_ends(self, *_: Any) -> None:
        if not self._is_compiling():
            self._enter(OTHER)


def _tensors(output: Any) -> Iterator[torch.Tensor]:
    """Those in what a module returns: a tensor, or tuples, lists and dicts of them."""
    if hasattr(output, "register_hook"):
        yield output
    elif isinstance(output, (tuple, list)):
        for item in output:
            yield from _tensors(item)
    elif isinstance(output, Mapping):
        yield from _tensors(list(output.values()))
