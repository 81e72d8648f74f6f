"""Checkpoints alone, for a training loop that a session cannot run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from nemo_resiliency_plugins.config import CheckpointConfig
from nemo_resiliency_plugins.runtime.batch import BatchNotes
from nemo_resiliency_plugins.runtime.checkpoint.reporting import GLOBAL, Reporter, report_half_a_local_tier
from nemo_resiliency_plugins.runtime.effective import is_strict, resolve
from nemo_resiliency_plugins.runtime.events import EventLog
from nemo_resiliency_plugins.runtime.identity import Identity


class Checkpoints:
    """What :meth:`Session.attach` does for a loop of its own, in four calls. All of them are collectives.

    ::

        with runtime.Checkpoints({"model": model, "optimizer": optimizer}, "checkpoints", every=100) as checkpoints:
            step = checkpoints.restore()
            while training:
                ...
                step += 1
                if checkpoints.should_save(step):
                    checkpoints.save(step)
            checkpoints.finalize(step)

    Args:
        state, directory, every, keep, process_group: as :meth:`Session.attach` takes them.
        config: asynchronous saves, the local tier; the variables and the file of CheckpointPlugin win over it.

    Raises:
        ConfigError: a bad value, or a state that cannot be saved.
        CheckpointError: from the methods, on all ranks: a checkpoint could not be committed, or none can be resumed
            from although some are there.
    """

    def __init__(
        self,
        state: Mapping[str, Any],
        directory: str | Path,
        every: int = 0,
        *,
        keep: int = 2,
        process_group: Any = None,
        config: CheckpointConfig | None = None,
    ) -> None:
        from nemo_resiliency_plugins.runtime.attaching import Wanted, make_checkpointer, make_ranks

        identity = Identity.from_env()
        wanted = Wanted(state, Path(directory).expanduser().absolute(), every, keep, (None, None, None))
        self._every = every
        self._saved: int | None = None
        self._local_due: int | None = None
        self._notes = BatchNotes(identity)
        self._events = EventLog(identity.directory, identity.attempt, identity.rank)
        reporter = Reporter(identity.rank, self._events, lambda step, seconds: self._notes.checkpointed(step))
        ranks = make_ranks(identity, process_group)
        effective = resolve(CheckpointConfig, config, os.environ)
        report_half_a_local_tier(effective, identity.rank, self._events, strict=is_strict(os.environ))
        self._checkpointer = make_checkpointer(ranks, wanted, effective, reporter, identity.node)

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let go of writers; a save that cannot be finished stays without its marker."""
        self._checkpointer.close()
        self._events.close()

    def restore(self) -> int:
        """Fill the state from the newest checkpoint; returns how many steps are in it, 0 where there is none."""
        step = self._checkpointer.resume()
        self._saved = step if self._checkpointer.tier == GLOBAL else None
        return step or 0

    def should_save(self, step: int) -> bool:
        """Whether one of the tiers is due after ``step`` steps; to be asked once after each step."""
        due = bool(self._every) and step % self._every == 0
        self._local_due = step if self._checkpointer.step_ends(step, saving=due) else None
        return due or self._local_due == step

    def save(self, step: int) -> None:
        """Save the state after ``step`` steps: to the local tier where that alone is due, else to the global one."""
        if self._local_due == step:
            self._local_due = None
            self._checkpointer.save_locally(step)
        elif step != self._saved:
            self._checkpointer.save(step, None)
            self._saved = step

    def finalize(self, step: int) -> None:
        """The training ends after ``step`` steps: return when they are durable in the global tier."""
        self._local_due = None
        self.save(step)
        self._checkpointer.drain()
