"""The one object that a training script holds; each feature of the runtime hangs on it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from nemo_resiliency_plugins.config import CheckpointConfig, FaultToleranceConfig, is_count
from nemo_resiliency_plugins.contract import (
    CHECKPOINTING,
    Attempt,
    ExitCode,
    Reason,
    Verdict,
    progress_path,
    started_path,
    verdict_path,
    write_atomically,
)
from nemo_resiliency_plugins.errors import ConfigError
from nemo_resiliency_plugins.runtime import watch, watching
from nemo_resiliency_plugins.runtime.checkpoint.manager import Checkpointer
from nemo_resiliency_plugins.runtime.checkpoint.reporting import GLOBAL, Reporter
from nemo_resiliency_plugins.runtime.effective import is_strict, resolve
from nemo_resiliency_plugins.runtime.events import EventLog, emit_failure
from nemo_resiliency_plugins.runtime.faults import FaultInjector
from nemo_resiliency_plugins.runtime.identity import Identity
from nemo_resiliency_plugins.runtime.log import line, logger
from nemo_resiliency_plugins.runtime.loop import Loop, is_success, ranks_if_any

if TYPE_CHECKING:
    import torch

    from nemo_resiliency_plugins.runtime.agreement import Ranks
    from nemo_resiliency_plugins.runtime.hang_detection import NoHangDetection


def session(config: FaultToleranceConfig | None = None, *, strict: bool | None = None) -> Session:
    """Open a session: a context manager, entered before ``init_process_group``.

    Args:
        config: what the script asks for; the plugins' variables and file win over it, field by field.
        strict: a feature that was asked for and cannot work here is an error instead of a warning;
            None takes ``NRP_STRICT``.

    Raises:
        ConfigError: a bad value, with its field and remedy.
        NotWorkingError: on entry, under ``strict``.
    """
    return Session(config, strict=strict)


class Session:
    """See :func:`session`. What is said to be collective must be called by all ranks in the same order."""

    _detection: NoHangDetection

    def __init__(self, config: FaultToleranceConfig | None, *, strict: bool | None) -> None:
        if not isinstance(config, (FaultToleranceConfig, type(None))):
            raise ConfigError("session.config", config, "must be a FaultToleranceConfig or None", "Build one.")
        self._config = resolve(FaultToleranceConfig, config, os.environ)
        self._checkpoint_config = resolve(CheckpointConfig, None, os.environ)
        self._strict = is_strict(os.environ) if strict is None else strict
        self._identity = Identity.from_env()
        self._checkpointer = Checkpointer()
        self._shared_ranks: Ranks | None = None
        self._models: list[torch.nn.Module] = []
        self._loop = Loop()
        self._entered = False
        self._loss: Any = None
        self.stop_reason: Reason | None = None
        """Why the ranks stop together; None while they do not."""

    def __enter__(self) -> Session:
        if self._entered:
            raise ConfigError("session", "entered twice", "serves one with statement", "Open a new session().")
        self._entered = True
        identity = self._identity
        self._events = EventLog(identity.directory, identity.attempt, identity.rank)
        self._events.emit("session_started", node=identity.node, world_size=identity.world_size)
        if identity.rank == 0:
            self._start_attempt()
        self._faults = FaultInjector(self._config, identity, self._events)
        self._detection = watching.start(self._config, identity, self._events, strict=self._strict)
        watch.reached_session()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is not None and not is_success(error):
                emit_failure(self._events, "session_failed", error)
            elif self._loop.done:
                self.finish()
            elif self.stop_reason is None:
                self._say(f"no finished verdict: {self._loop.why_not_done}. Call finish() if that is meant")
        finally:
            self._checkpointer.close()
            self._detection.close(finished=self.stop_reason is Reason.FINISHED)
            self._events.close()

    def attach(
        self,
        state: Mapping[str, Any] | None = None,
        directory: str | Path | None = None,
        every: int = 0,
        *,
        keep: int = 2,
        process_group: Any = None,
        save: Callable[[int], object] | None = None,
        load: Callable[[int], object] | None = None,
        latest: Callable[[], int | None] | None = None,
    ) -> int:
        """Collective. Resume from the newest checkpoint, and return the step to go on with: 0 on a first start.

        Args:
            state: what to save and restore by name: modules, optimizers, anything with ``state_dict()`` and
                ``load_state_dict()``. Random number generators are added.
            directory: where checkpoints and ``ft_state.json`` are kept, on a file system that all ranks share.
            every: steps between checkpoints; 0 saves after the last step only.
            keep: committed checkpoints to keep.
            process_group: a group over all ranks with a CPU backend; None makes one.
            save, load, latest: a format of the user's own instead of ``state``: ``save(step)``, ``load(step)``,
                and ``latest()`` with the newest step or None.

        Raises:
            ConfigError: neither ``state`` with a directory nor all three functions were given, or a bad value.
            CheckpointError: checkpoints are there and none can be resumed from.
        """
        from nemo_resiliency_plugins.runtime.attaching import Wanted, make_checkpointer, make_ranks

        if self._shared_ranks is not None or not self._entered:
            raise ConfigError("session.attach", "called", "belongs once into the session's with block", "Call it once.")
        root = Path(directory).expanduser().absolute() if directory is not None else None
        self._loop.every = every
        self._shared_ranks = make_ranks(self._identity, process_group)
        wanted = Wanted(state, root, every, keep, (save, load, latest))
        reporter = Reporter(self._identity.rank, self._events, lambda step: self._leave(progress_path, f"{step}\n"))
        self._checkpointer, self._models = make_checkpointer(
            self._shared_ranks, wanted, self._checkpoint_config, reporter, self._identity.node
        )
        self._detection.start_learning(root or self._identity.directory, self._shared_ranks.maximum)
        began = time.monotonic()
        resumed = self._checkpointer.resume()
        tier = self._checkpointer.tier
        self._events.emit("resumed", step=resumed, tier=tier, seconds=time.monotonic() - began)
        return self._loop.resume(resumed, saved=tier == GLOBAL)

    def steps(self, start: int, stop: int) -> Iterator[int]:
        """The steps ``start`` to ``stop - 1``, each watched; collective where a checkpoint is due, and at the end.

        Leave the loop early with :meth:`stop`, not with ``break``: the state in the middle of a step belongs to no
        step, and a generator that something still holds keeps its section open.
        """
        self._check_steps(start, stop)
        self._loop.done = False
        try:
            for step in range(start, stop):
                if self.should_stop():
                    return
                self._step_begins(step)
                yield step
                self._step_ends(step, first=step == start)
                if self._loop.stop_asked:
                    break
            self._detection.loop_ends()
            self._save_last()
            self._loop.done = True
        finally:
            self._detection.loop_ends()

    def stop(self) -> None:
        """Let the loop end after the running step, as if it were the last; all ranks in the same step."""
        self._loop.stop_asked = True

    def save(self) -> None:
        """Collective. Save the state after the last completed step; inside a step, when that step ends.

        Raises:
            CheckpointError: on all ranks, when the checkpoint could not be committed.
        """
        if self._loop.in_step is not None:
            self._loop.save_asked = True
        elif self._shared_ranks is not None and self._loop.unsaved:
            self._save(self._shared_ranks, self._loop.completed)

    def section(self, name: str) -> AbstractContextManager[None]:
        """A block with a limit of its own: ``setup``, ``step``, ``checkpointing``, or a name with a timeout.

        For an evaluation inside the loop, say. Where ``name`` has no timeout, the limit out of sections holds.
        """
        if not isinstance(name, str) or not name:
            raise ConfigError("session.section", name, "must be a name", 'For example section("evaluation").')
        return self._detection.section(name)

    def pause(self) -> AbstractContextManager[None]:
        """A block in which no hang is assumed, however long it takes; a crash is seen all the same."""
        return self._detection.paused()

    def observe(self, loss: Any) -> None:
        """Tell the session the loss of the running step: one number or a tensor with one. Never synchronises a GPU."""
        detached = loss.detach() if hasattr(loss, "detach") else loss
        if getattr(detached, "numel", lambda: 1)() != 1 or isinstance(detached, str):
            raise ConfigError("session.observe", type(loss).__name__, "must be one number", "Give loss.mean(), say.")
        self._loss = detached

    def should_stop(self) -> bool:
        """Whether all ranks are to stop; for the user's own inner loops (evaluation)."""
        return self.stop_reason is not None

    def settle(self, forward_backward: Callable[[], object]) -> None:
        """Two throwaway passes before the loop, so that a restarted DDP model gives the same bits.

        ``forward_backward`` does the forward and backward pass of one step on a fixed batch, without an optimizer
        step. Gradients, buffers and random numbers of the attached modules are put back.
        """
        from nemo_resiliency_plugins.runtime.settle import settle

        if not self._models:
            raise ConfigError("session.settle", "no module", "needs attached modules", "Call attach(state=...) first.")
        settle(self._models, forward_backward)

    def finish(self) -> None:
        """Collective. The training is done: rank 0 writes the finished verdict when all ranks are here."""
        if self.stop_reason is not None:
            return
        self._checkpointer.drain()
        ranks = self._shared_ranks or ranks_if_any()
        if ranks is not None and not ranks.dissolved:
            ranks.barrier()
        self.stop_reason = Reason.FINISHED
        completed = self._loop.completed
        verdict = Verdict(Reason.FINISHED, ExitCode.OK, completed, self._identity.rank, self._identity.node)
        if self._identity.rank == 0 and self._identity.directory is not None:
            verdict.write(self._identity.directory, self._identity.attempt)
        self._events.emit("finished", step=completed)

    def _start_attempt(self) -> None:
        """Rank 0 tells the batch script and the log that a session has started."""
        logger().info(line(0, f"effective configuration: {self._config}"))
        directory, attempt = self._identity.directory, self._identity.attempt
        if directory is not None and attempt.cycle == 0:
            verdict_path(directory, attempt).unlink(missing_ok=True)  # of another run in the same directory
        self._leave(started_path, "")

    def _check_steps(self, start: int, stop: int) -> None:
        if not self._entered:
            raise ConfigError("session.steps", "called", "belongs into the session's with block", "Enter it first.")
        if not (is_count(start) and is_count(stop)):
            raise ConfigError("session.steps", (start, stop), "must be whole numbers, 0 or more", "Give two ints.")
        if self._shared_ranks is not None and start != self._loop.completed:
            rule = f"the attached state is that after {self._loop.completed} steps"
            raise ConfigError("session.steps.start", start, rule, "Start with what attach() returned.")
        if self._shared_ranks is None and self._config.calc_ft_timeouts:
            self._say("timeouts are not learned: attach() was not called, so the ranks cannot agree on them")

    def _save(self, ranks: Ranks, step: int) -> None:
        with self._detection.section(CHECKPOINTING):
            self._checkpointer.save(step, None if self._loss is None else float(self._loss))
            self._loop.saved = step
            self._detection.learn(ranks.maximum)

    def _save_last(self) -> None:
        """:meth:`save`, and return when it is durable."""
        self.save()
        with self._detection.section(CHECKPOINTING):
            self._checkpointer.drain()

    def _leave(self, path: Callable[[Path, Attempt], Path], text: str) -> None:
        """Tell the batch script something, where there is a directory for it."""
        if self._identity.directory is not None:
            write_atomically(path(self._identity.directory, self._identity.attempt), text)

    def _say(self, text: str) -> None:
        if self._identity.rank == 0:
            logger().warning(line(0, text))

    def _step_begins(self, step: int) -> None:
        self._loop.in_step = step
        self._detection.step_begins(step)
        if self._faults.armed:
            self._faults.step_begins(step)

    def _step_ends(self, step: int, *, first: bool) -> None:
        self._detection.step_ends()
        if first:
            self._events.emit("first_step", step=step)
        due = self._loop.step_ends(step)
        if self._checkpointer.step_ends(self._loop.completed, saving=due):
            with self._detection.section(CHECKPOINTING):
                self._checkpointer.save_locally(self._loop.completed)
        if due:
            self.save()
