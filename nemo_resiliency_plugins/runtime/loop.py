"""Where a rank is in its training loop, and which step its state belongs to."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from nemo_resiliency_plugins.config import FaultToleranceConfig
from nemo_resiliency_plugins.config.rules import is_count
from nemo_resiliency_plugins.errors import ConfigError
from nemo_resiliency_plugins.runtime.identity import Identity

if TYPE_CHECKING:
    from nemo_resiliency_plugins.runtime.agreement import Ranks


@dataclasses.dataclass
class Loop:
    """``completed`` steps are in the state; ``in_step`` is the one that runs, or in which the loop was left."""

    every: int = 0
    completed: int = 0
    resumed: int | None = None
    saved: int | None = None
    in_step: int | None = None
    save_asked: bool = False
    stop_asked: bool = False
    done: bool = False

    @property
    def unsaved(self) -> bool:
        return self.saved != self.completed

    @property
    def why_not_done(self) -> str:
        if self.in_step is None:
            return "the session ends before its last step"
        lost = "; the checkpoint asked for in it was not written" if self.save_asked else ""
        return f"the loop was left in the middle of step {self.in_step}, use stop() instead of break{lost}"

    def check(self, start: int, stop: int, *, attached: bool) -> None:
        """A loop begins. Raises ConfigError: its bounds are no counts, or it begins not where the state is."""
        self.done = False
        if not (is_count(start) and is_count(stop)):
            raise ConfigError("session.steps", (start, stop), "must be whole numbers, 0 or more", "Give two ints.")
        if attached and start != self.completed:
            rule = f"the attached state is that after {self.completed} steps"
            raise ConfigError("session.steps.start", start, rule, "Start with what attach() returned.")

    def nothing_left(self, stop: int) -> Iterator[str]:
        """What is said where a checkpoint has brought all steps of the loop."""
        if self.resumed is not None and self.completed >= stop:
            yield f"nothing is left to do: the checkpoint of step {self.completed} has all {stop} steps"

    def resume(self, step: int | None, *, saved: bool) -> int:
        """Take over the step of a checkpoint, ``saved`` if of the global tier; returns the step to go on with."""
        self.saved, self.completed, self.resumed = step if saved else None, step or 0, step
        return self.completed

    def step_ends(self, step: int) -> bool:
        """Count the step; whether a checkpoint is due after it."""
        asked, self.save_asked, self.in_step = self.save_asked, False, None
        self.completed = step + 1
        return asked or bool(self.every and self.completed % self.every == 0)


def without_attach(identity: Identity, config: FaultToleranceConfig) -> Iterator[str]:
    """What a loop goes without because nothing was attached."""
    if identity.attempt.is_repeated:
        yield "the job was started before, and nothing is resumed: attach() was not called"
    if config.calc_ft_timeouts:
        yield "timeouts are not learned: attach() was not called, so the ranks cannot agree on them"


def one_number(loss: Any) -> Any:
    """``loss`` without its graph. Raises ConfigError: it is not one number."""
    detached = loss.detach() if hasattr(loss, "detach") else loss
    if getattr(detached, "numel", lambda: 1)() != 1 or isinstance(detached, str):
        raise ConfigError("session.observe", type(loss).__name__, "must be one number", "Give loss.mean(), say.")
    return detached


def is_success(error: BaseException) -> bool:
    """``sys.exit()`` and ``sys.exit(0)`` end a program well."""
    return isinstance(error, SystemExit) and error.code in (None, 0)


def ranks_if_any() -> Ranks | None:
    """The ranks, where a process group exists; this loads nothing that the script has not loaded."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_initialized():
        return None
    from nemo_resiliency_plugins.runtime.agreement import Ranks

    return Ranks()
