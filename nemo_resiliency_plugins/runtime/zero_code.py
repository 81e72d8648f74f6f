"""What an unchanged script gets from the launch stub: its optimizers' steps are its heartbeats.

Two steps of optimizers bound a ``step``, whatever the script does between them: an evaluation and a save too. So a
limit is learned late, once these have been seen, and each rank learns alone: a collective of ours could meet those
of the script. A session that the script opens takes over.
"""

from __future__ import annotations

import atexit
import dataclasses
import os
import sys
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from nemo_resiliency_plugins.config import FaultToleranceConfig, PreemptionConfig
from nemo_resiliency_plugins.config.rules import changed_fields
from nemo_resiliency_plugins.contract import ENV_NOTICE, ExitCode, Reason, Verdict, rank_record_path, verdict_path
from nemo_resiliency_plugins.runtime import watch, watching
from nemo_resiliency_plugins.runtime.effective import is_strict, resolve
from nemo_resiliency_plugins.runtime.events import EventLog
from nemo_resiliency_plugins.runtime.faults import FaultInjector
from nemo_resiliency_plugins.runtime.hang_detection import NoHangDetection
from nemo_resiliency_plugins.runtime.identity import Identity
from nemo_resiliency_plugins.runtime.log import line, logger
from nemo_resiliency_plugins.runtime.not_working import report
from nemo_resiliency_plugins.runtime.preemption.bystander import Bystander
from nemo_resiliency_plugins.runtime.preemption.notice import Judge, has_notice
from nemo_resiliency_plugins.runtime.prestart import imports as prestart
from nemo_resiliency_plugins.runtime.when_imported import WhenImported

OPTIMIZERS = "torch.optim.optimizer"
FLOOR_S = 120.0
"""No learned limit goes below: what follows the last step, an export say, was never seen before."""
WATCHED_LIMITS = 10
"""A rank is watched for so many times its limit before a tighter one is learned."""
LEARN_EVERY_S = 60.0
LOOK_S = 1.0
CANNOT = (
    "zero code: hangs are watched from the first optimizer step on. The script's state is neither saved nor restored, "
    "and it cannot be stopped after a step: at a preemption notice its own handler decides, or it ends. "
    "A runtime.session does all that"
)

_zero_code: ZeroCode | None = None


def begin(config: FaultToleranceConfig, identity: Identity, events: EventLog, *, listens: bool) -> None:
    """Watch the script that is about to run; ``listens``: nobody else takes care of signals."""
    global _zero_code
    _zero_code = ZeroCode(config, identity, events, listens=listens)


def give_way() -> None:
    """A session opens."""
    if _zero_code is not None:
        _zero_code.give_way()


def failed() -> None:
    """The script ends with an error."""
    if _zero_code is not None:
        _zero_code.failed()


def knows_to_train(identity: Identity) -> bool:
    """Whether a former start of this rank came to a step, so that this one can be expected to."""
    return identity.directory is not None and rank_record_path(identity.directory, identity.rank).exists()


def report_other_program(command: str, identity: Identity) -> None:
    """Raises NotWorkingError under ``NRP_STRICT``: the rank is no Python script, and the stub is gone from it."""
    what, reason = "zero code was asked for, but nothing is watched", f"the rank runs {command}"
    remedy = "Let the task start the Python script itself"
    events, strict = EventLog(identity.directory, identity.attempt, identity.rank), is_strict(os.environ)
    report(what, reason, remedy, feature="zero code", rank=identity.rank, events=events, strict=strict)


class ZeroCode:
    """One rank, from the stub to the last exit hook."""

    def __init__(self, config: FaultToleranceConfig, identity: Identity, events: EventLog, *, listens: bool) -> None:
        self._config, self._identity, self._events = config, identity, events
        self._owner = os.getpid()
        self._active, self._failed = True, False
        self._lock = threading.Lock()
        self._detection: NoHangDetection | None = None
        self._counts: dict[int, int] = {}
        self._step = 0
        self._learn_at = 0.0
        self.has_unseen = False
        """A compiled optimizer has stepped; only ever written in the hook, so that no compiler guards its value."""
        self._bystander = _bystander(identity, events) if listens else None
        self._note = _note_of_end(identity)
        self._forget_former_run()
        self._torch: Any = None
        WhenImported(OPTIMIZERS, self._register)
        os.register_at_fork(after_in_child=self._leave_child_alone)
        atexit.register(self._exits)  # runs last: those of the script come after it

    def give_way(self) -> None:
        with self._lock:
            active, self._active = self._active, False
            if active and self._detection is not None:
                self._detection.close(finished=False)
        if active and self._bystander is not None:
            self._bystander.give_way()

    def failed(self) -> None:
        if self._is_mine():
            self._failed = True
            if self._detection is not None:
                self._detection.close(finished=False)

    def _register(self, optimizers: ModuleType) -> None:
        """In the middle of torch's own import."""
        if not self._active:
            return
        self._torch = sys.modules["torch"]
        optimizers.register_optimizer_step_post_hook(self._stepped)
        threading.Thread(target=self._look_for_unseen, name="nrp-zero-code", daemon=True).start()

    def _stepped(self, optimizer: Any, *_: Any) -> None:
        if self._torch.compiler.is_compiling():
            self.has_unseen = True
        elif self._active:
            self._beat(id(optimizer))

    def _look_for_unseen(self) -> None:
        while self._active:
            time.sleep(LOOK_S)
            if self.has_unseen and self._active:
                self.has_unseen = False
                self._beat(0)

    def _beat(self, optimizer: int) -> None:
        """An optimizer has stepped; the most eager of them counts the steps. Threads may do so at the same time."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            count = self._counts[optimizer] = self._counts.get(optimizer, 0) + 1
            self._step = max(self._step, count)
            if self._detection is None:
                self._detection = self._first_step()
            self._detection.step_ends()
            if time.monotonic() > self._learn_at:
                self._learn_at = time.monotonic() + LEARN_EVERY_S
                self._detection.learn(list)
            self._detection.step_begins(self._step)
            if self._faults.armed:
                self._faults.step_begins(self._step)
        finally:
            self._lock.release()

    def _first_step(self) -> NoHangDetection:
        watch.reached_session()
        if self._identity.rank == 0 and not self._identity.attempt.is_repeated:
            logger().warning(line(0, CANNOT))
        self._events.emit("first_step", step=0)
        prestart.tell()
        self._faults = FaultInjector(self._config, self._identity, self._events)
        config = dataclasses.replace(self._config, enable_ft_package=True)
        if "timeout_floor_s" not in changed_fields(config):
            config = dataclasses.replace(config, timeout_floor_s=FLOOR_S)
        strict = is_strict(os.environ)
        detection = watching.start(config, self._identity, self._events, strict=strict, alone=True)
        detection.start_learning(_learned(self._identity), list)
        self._learn_at = time.monotonic() + WATCHED_LIMITS * (detection.step_limit_s or 0.0)
        return detection

    def _forget_former_run(self) -> None:
        """What ended in the same directory before."""
        identity = self._identity
        if self._note is not None:
            self._note.unlink(missing_ok=True)
        first = identity.rank == 0 and identity.attempt.cycle == 0 and ENV_NOTICE not in os.environ
        if identity.directory is not None and first:
            verdict_path(identity.directory, identity.attempt).unlink(missing_ok=True)

    def _is_mine(self) -> bool:
        return self._active and os.getpid() == self._owner

    def _leave_child_alone(self) -> None:
        self._active = False

    def _exits(self) -> None:
        if not self._is_mine() or self._failed:
            return
        self._active = False
        if self._detection is not None:
            self._detection.close(finished=True)
        elif self._torch is not None and not self.has_unseen and self._identity.rank == 0:
            logger().warning(line(0, "zero code: no optimizer has stepped, so hangs were not watched"))
        if not (self._bystander and self._bystander.told) and not has_notice(self._identity):
            self._finished()

    def _finished(self) -> None:
        """The last rank to end well writes the verdict of all."""
        identity = self._identity
        self._events.emit("finished", step=self._step)
        if self._note is None or identity.directory is None:
            return
        self._note.parent.mkdir(parents=True, exist_ok=True)
        self._note.touch()
        if len(list(self._note.parent.iterdir())) >= identity.world_size:
            verdict = Verdict(Reason.FINISHED, ExitCode.OK, self._step, identity.rank, identity.node)
            verdict.write(identity.directory, identity.attempt)


def _bystander(identity: Identity, events: EventLog) -> Bystander | None:
    config = resolve(PreemptionConfig, None, os.environ)
    if not config.exit_signal_handler:
        return None
    return Bystander(config, identity, events, Judge.from_env(identity, os.environ))


def _note_of_end(identity: Identity) -> Path | None:
    """The ranks of one start share their MASTER_PORT."""
    if identity.directory is None:
        return None
    start = f"{identity.attempt.name}-{os.environ.get('MASTER_PORT', '0')}"
    return identity.directory / "ended" / start / f"rank{identity.rank:05d}"


def _learned(identity: Identity) -> Path | None:
    """The directory for what this rank alone has learned."""
    if identity.directory is None:
        return None
    return rank_record_path(identity.directory, identity.rank).with_suffix("")
