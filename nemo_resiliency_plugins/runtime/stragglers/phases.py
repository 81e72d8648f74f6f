"""What a rank does in each step, and for how long: seen by hooks on the attached modules and optimizers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

PHASES = ("data", "forward", "backward", "optimizer", "other")
DATA, FORWARD, BACKWARD, OPTIMIZER, OTHER, _WAITING, _BETWEEN = range(7)
"""Places in a list of seconds; the last two are no work.

After the last gradient: DDP waits for those of the others; or it does not, and another micro-batch may follow."""


class Phases:
    """Splits every step into :data:`PHASES`, in seconds of ``clock``.

    *data* goes from the begin of the step to the forward pass, *backward* to the rank's last gradient, *other* from
    the optimizer to the end of the step. Without attached modules everything is *data*; of modules that torch compiles
    with their hooks, forward and backward are: there the hooks do nothing, so that they break no graph.

    Which gradient is the last one is found out in the first step, where each parameter has a hook, and again when it
    stays away; in other steps it is one hook for the whole backward pass. Under FSDP2 none of them is called
    (torch 2.13), and *backward* goes on to the optimizer: its waits are not in ``clock``.
    """

    def __init__(
        self,
        models: Sequence[torch.nn.Module] = (),
        optimizers: Sequence[torch.optim.Optimizer] = (),
        clock: Callable[[], float] = float,
    ) -> None:
        from torch.compiler import is_compiling

        self._clock, self._models, self._is_compiling = clock, models, is_compiling
        self._reducing = [model for model in models if hasattr(model, "require_backward_grad_sync")]
        self._spent = [0.0] * 7
        self._phase, self._since = OTHER, 0.0
        self._is_searching, self._is_seen = False, False
        self._last: Any = None
        self._of_gradients: list[Any] = []
        self._hooks: list[Any] = []
        for model in models:
            self._hooks.append(model.register_forward_pre_hook(self._forward_begins, prepend=True))
            self._hooks.append(model.register_forward_hook(self._forward_ends))
        for optimizer in optimizers:
            self._hooks.append(optimizer.register_step_pre_hook(self._optimizer_begins))
            self._hooks.append(optimizer.register_step_post_hook(self._optimizer_ends))
        self._search()

    def __reduce__(self) -> tuple[type[Phases], tuple[()]]:
        """A copied or pickled model brings its hooks along: those of the copy watch nothing."""
        return Phases, ()

    def step_begins(self) -> None:
        self._spent = [0.0] * 7
        self._phase, self._since, self._is_seen = DATA, self._clock(), False

    def step_ends(self) -> list[float] | None:
        """Seconds of each phase; None for a step in which it was not known where *backward* ends."""
        self._enter(OTHER)
        if self._is_searching:
            self._is_searching = False
            self._hook_gradients([] if self._last is None else [self._last])
        elif self._last is not None and not self._is_seen:
            self._search()
        else:
            return self._spent[: len(PHASES)]
        return None

    def close(self) -> None:
        for hook in (*self._hooks, *self._of_gradients):
            hook.remove()

    def _enter(self, phase: int) -> None:
        now = self._clock()
        self._spent[self._phase] += now - self._since
        self._phase, self._since = phase, now

    def _search(self) -> None:
        self._is_searching, self._last = True, None
        self._hook_gradients([parameter for model in self._models for parameter in model.parameters()])

    def _hook_gradients(self, parameters: Sequence[Any]) -> None:
        for hook in self._of_gradients:
            hook.remove()
        self._of_gradients = [
            parameter.register_post_accumulate_grad_hook(self._gradient_is_there)
            for parameter in parameters
            if parameter.requires_grad and parameter.is_leaf
        ]

    def _forward_begins(self, model: Any, *_: Any) -> None:
        if self._is_compiling():
            return
        if self._phase == _BETWEEN:
            self._phase = DATA  # of the next micro-batch
        self._enter(FORWARD)

    def _forward_ends(self, *_: Any) -> None:
        if not self._is_compiling():
            self._enter(BACKWARD)

    def _gradient_is_there(self, parameter: Any) -> None:
        if self._is_searching:
            self._last = parameter
        else:
            self._is_seen = True
            self._enter(_WAITING if self._waits_for_others() else _BETWEEN)

    def _optimizer_begins(self, *_: Any) -> None:
        self._enter(OPTIMIZER)

    def _optimizer_ends(self, *_: Any) -> None:
        self._enter(OTHER)

    def _waits_for_others(self) -> bool:
        """DDP's own word for a backward pass that is not within ``no_sync()``."""
        return any(model.require_backward_grad_sync for model in self._reducing)
