"""Megatron-Bridge's loop: its own client of NVRx stays the only one, and the batch script learns how it ended.

::

    with ResiliencyCallback() as callback:
        pretrain(config, forward_step, callbacks=[callback])
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import TracebackType
from typing import Any

from nemo_resiliency_plugins.compat.nvrx_guard import GuardedClient
from nemo_resiliency_plugins.config import FaultToleranceConfig, PreemptionConfig
from nemo_resiliency_plugins.config.preemption import signal_name
from nemo_resiliency_plugins.contract import Reason
from nemo_resiliency_plugins.errors import ConfigError
from nemo_resiliency_plugins.integrations import megatron_results
from nemo_resiliency_plugins.runtime import watch
from nemo_resiliency_plugins.runtime.batch import BatchNotes
from nemo_resiliency_plugins.runtime.effective import is_strict, resolve
from nemo_resiliency_plugins.runtime.events import EventLog, emit_failure
from nemo_resiliency_plugins.runtime.faults import FaultInjector
from nemo_resiliency_plugins.runtime.identity import Identity
from nemo_resiliency_plugins.runtime.log import line, logger
from nemo_resiliency_plugins.runtime.loop import is_success
from nemo_resiliency_plugins.runtime.not_working import report
from nemo_resiliency_plugins.runtime.preemption import early
from nemo_resiliency_plugins.runtime.preemption.notice import Judge

TRACKER = "latest_checkpointed_iteration.txt"


class ResiliencyCallback:
    """Enter it, and give it to ``pretrain`` among the callbacks (Megatron-Bridge 0.3 and later).

    It leaves the verdicts finished and preempted and that of a suspect result, takes each newer iteration in
    Megatron-Bridge's tracker file for progress, injects the faults that the plugin was told, and says what was asked
    for and cannot work. Hangs are Megatron-Bridge's own business, and so is saving; the loss of a rank monitor, which
    ends on Slurm's signal as well, no longer keeps it from saving.

    Args:
        strict: what was asked for and cannot work is an error instead of a warning; None takes ``NRP_STRICT``.

    Raises:
        ConfigError: from ``on_train_start``, when it was not entered.
        NotWorkingError: from ``on_train_start``, under ``strict``.
    """

    def __init__(self, *, strict: bool | None = None) -> None:
        self._strict = is_strict(os.environ) if strict is None else strict
        self._identity = Identity.from_env()
        self._notes = BatchNotes(self._identity)
        self._state: Any = None
        self._tracker: Tracker | None = None
        self._entered = self._first_step_told = self._trained = self._signalled = False

    def __enter__(self) -> ResiliencyCallback:
        identity = self._identity
        self._judge = Judge.from_env(identity, os.environ)
        self._events = EventLog(identity.directory, identity.attempt, identity.rank)
        self._faults = FaultInjector(resolve(FaultToleranceConfig, None, os.environ), identity, self._events)
        self._events.emit("session_started", node=identity.node, world_size=identity.world_size)
        self._notes.started()
        self._entered = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._look()
        try:
            self._ended_by(error)
        finally:
            self._events.close()

    def _ended_by(self, error: BaseException | None) -> None:
        rejected = megatron_results.reason_of(error)
        if rejected is not None and self._state is not None:
            megatron_results.end(rejected, self._step, self._identity, self._notes, self._events)
        if error is not None and not is_success(error):
            emit_failure(self._events, "session_failed", error)
        elif self._trained or (self._state is None and error is None):
            self._end(Reason.FINISHED)
        elif self._state is not None:
            self._left_early()
        else:
            self._say("no finished verdict: the program was ended before its loop")

    def on_train_start(self, context: Any) -> None:
        """Collective, as all of them: Megatron-Bridge calls them on every rank."""
        if not self._entered:
            remedy = "Write: with ResiliencyCallback() as callback: pretrain(..., callbacks=[callback])"
            raise ConfigError("ResiliencyCallback", "not entered", "is a context manager as well", remedy)
        self._state = context.state
        self._reached_loop(context)
        self._report_what_does_not_work()
        if self._state.cfg.train.exit_signal_handler:
            self._listen_to(self._state.signal_handler)
        client = self._state.rank_monitor_client
        self._state.rank_monitor_client = GuardedClient(client, self._lost_monitor) if client else None
        self._tracker = Tracker(self._state.cfg.checkpoint.save) if self._identity.rank == 0 else None
        self._events.emit("resumed", step=self._step, tier="global")

    def on_train_step_start(self, context: Any) -> None:
        """Here the checkpoint of the step before is seen."""
        self._look()
        if self._faults.armed:
            self._faults.step_begins(self._step)

    def on_train_step_end(self, context: Any) -> None:
        """The first one tells that the training is back."""
        if not self._first_step_told:
            self._first_step_told = True
            self._events.emit("first_step", step=self._step)

    def on_train_end(self, context: Any) -> None:
        """All iterations are done; the last checkpoint may be still to come."""
        self._trained = True

    def on_checkpoint_save(self, context: Any) -> None:
        """Newer versions tell of a save."""
        self._look()

    def _reached_loop(self, context: Any) -> None:
        """From here on Megatron-Bridge watches, and its handlers are there."""
        watch.reached_session()
        early.withdraw()

    on_eval_start = on_test_start = _reached_loop

    @property
    def _step(self) -> int:
        return int(self._state.train_state.step)

    def _look(self) -> None:
        newer = self._tracker.newer() if self._tracker else None
        if newer is not None:
            self._notes.checkpointed(newer)
            self._events.emit("checkpoint", step=newer, tier="global", written=True)

    def _listen_to(self, handler: Any) -> None:
        """The loop asks its handler after each step, all ranks together: asking again would be one more collective."""
        ask = handler.signals_received

        def signals_received() -> list[bool]:
            answers: list[bool] = ask()
            self._signalled = any(answers)
            return answers

        handler.signals_received = signals_received

    def _lost_monitor(self, message: str) -> None:
        self._events.emit("monitor_lost", message=message)
        text = "the rank monitor is gone, as after Slurm's signal: hangs are no longer seen, and the training goes on"
        logger().warning(line(self._identity.rank, text))

    def _left_early(self) -> None:
        """The loop was left before its last iteration, by all ranks after the same one."""
        train, step = self._state.cfg.train, self._step
        if self._signalled and self._judge.is_notice(signal.Signals[signal_name(train.exit_signal)]):
            self._end(self._preempted)
        elif train.exit_interval and step % train.exit_interval == 0:
            self._say(f"iteration {step} is where train.exit_interval ends the program: finished")
            self._end(Reason.FINISHED)
        elif train.exit_duration_in_mins:
            self._say("train.exit_duration_in_mins has ended the program: it goes on in another allocation")
            self._end(self._preempted)
        else:
            self._say("no finished verdict: the loop was left before its last iteration, and no signal announced it")

    @property
    def _preempted(self) -> Reason:
        """On rank 0, which alone knows the tracker and writes the verdict."""
        is_saved = self._tracker is not None and self._tracker.step == self._step
        return Reason.PREEMPTED if is_saved else Reason.PREEMPTED_UNSAVED

    def _end(self, reason: Reason) -> None:
        step = 0 if self._state is None else self._step
        self._notes.ended(reason, step)
        self._events.emit("finished" if reason is Reason.FINISHED else "preempted", step=step)

    def _report_what_does_not_work(self) -> None:
        train = self._state.cfg.train
        told = resolve(PreemptionConfig, None, os.environ)
        if told.exit_signal_handler and not train.exit_signal_handler:
            self._report("preemption", "train.exit_signal_handler is off", "Set it, or let the plugin: overrides")
        elif told.exit_signal_handler and signal_name(train.exit_signal) != told.exit_signal:
            reason = f"Slurm sends {told.exit_signal}, and train.exit_signal is {signal_name(train.exit_signal)}"
            self._report("preemption", reason, "Give both the same signal")
        if resolve(FaultToleranceConfig, None, os.environ).enable_ft_package and not self._state.rank_monitor_client:
            self._report("hang detection", "ft.enable_ft_package is off", "Set it, or let the plugin: overrides")
        save = self._state.cfg.checkpoint.save
        if not save or "://" in str(save):
            self._report("progress", f"checkpoint.save is {save!r}, no directory", "Give one that all nodes share")

    def _report(self, feature: str, reason: str, remedy: str) -> None:
        what, identity = f"{feature} was asked for, but Megatron-Bridge does not bring it", self._identity
        report(what, reason, remedy, feature=feature, rank=identity.rank, events=self._events, strict=self._strict)

    def _say(self, text: str) -> None:
        if self._identity.rank == 0:
            logger().warning(line(0, text))


class Tracker:
    """Megatron-Bridge writes its tracker file when a checkpoint is complete; what it says at first is no news."""

    def __init__(self, directory: str | None) -> None:
        self._path = Path(directory or os.devnull) / TRACKER
        self._seen = self._signature()
        self.step = self._read()

    def newer(self) -> int | None:
        """The iteration of a checkpoint that was completed since the last look."""
        signature = self._signature()
        if signature == self._seen:
            return None
        self._seen, read = signature, self._read()
        if read in (None, self.step):
            return None
        self.step = read
        return read

    def _signature(self) -> tuple[int, int, int] | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def _read(self) -> int | None:
        """None while it is being written, and for a release, which is no iteration."""
        try:
            return int(self._path.read_text())
        except (OSError, ValueError):
            return None
