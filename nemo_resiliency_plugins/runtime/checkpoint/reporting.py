"""What becomes of each save, in the log, the events and for the batch script; nothing is called saved before it is."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from nemo_resiliency_plugins.config import CheckpointConfig
from nemo_resiliency_plugins.runtime.log import line, logger
from nemo_resiliency_plugins.runtime.not_working import report as not_working

if TYPE_CHECKING:
    from nemo_resiliency_plugins.runtime.events import EventLog

GLOBAL, LOCAL = "global", "local"
"""The tiers of checkpoints."""


@dataclasses.dataclass(frozen=True)
class Save:
    """A save of the state after ``step`` steps; ``loss`` is that of the last of them."""

    step: int
    tier: str
    loss: float | None
    began: float = dataclasses.field(default_factory=time.monotonic)

    def __str__(self) -> str:
        return f"{'local ' if self.tier == LOCAL else ''}checkpoint of step {self.step}"

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began


class Reporter:
    """Of one rank; rank 0 speaks for all in the log.

    Args:
        progress: is told the step of each durable checkpoint of the global tier, and its seconds, on rank 0.
    """

    def __init__(self, rank: int, events: EventLog, progress: Callable[[int, float], None]) -> None:
        self._rank, self._events, self._progress = rank, events, progress

    def scheduled(self, save: Save) -> None:
        """Its writer is about to start; the training has been held since the save began."""
        self._events.emit("checkpoint_scheduled", step=save.step, tier=save.tier, seconds=save.seconds)
        if self._rank == 0:
            logger().info(line(0, f"Scheduling async checkpoint save: {save}"))

    def durable(self, save: Save, *, written: bool) -> None:
        """It can be resumed from; ``written`` is False where it was there before."""
        if self._rank == 0:
            if save.tier == GLOBAL:
                self._progress(save.step, save.seconds)
            logger().info(line(0, f"{save} is durable after {save.seconds:.3f} s"))
        fields = {"tier": save.tier, "written": written, "seconds": save.seconds, "loss": save.loss}
        self._events.emit("checkpoint", step=save.step, **fields)

    def failed(self, save: Save, problem: str, *, in_a_row: int, tolerated: int) -> None:
        """Nothing of it can be resumed from; those before are as they were."""
        fields = {"tier": save.tier, "problem": problem, "in_a_row": in_a_row, "tolerated": tolerated}
        self._events.emit("checkpoint_failed", step=save.step, **fields)
        if self._rank == 0:
            count = f"{in_a_row} in a row, {tolerated} tolerated"
            logger().warning(line(0, f"{save} failed ({count}): {problem}"))


def report_half_a_local_tier(config: CheckpointConfig, rank: int, events: EventLog, *, strict: bool) -> None:
    """Raises NotWorkingError under ``strict``, where a local tier was configured by half."""
    missing = config.missing_for_local_tier
    if missing is not None:
        what, reason = "a local checkpoint tier was asked for, but there is none", f"{missing} is not set"
        remedy = "Set it, or leave the other one out"
        not_working(what, reason, remedy, feature="local checkpoints", rank=rank, events=events, strict=strict)
