"""What a session does about preemption: from the signal to the agreed step."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

from nemo_resiliency_plugins.config import PreemptionConfig
from nemo_resiliency_plugins.runtime.events import EventLog, message_of
from nemo_resiliency_plugins.runtime.identity import Identity
from nemo_resiliency_plugins.runtime.log import line, logger
from nemo_resiliency_plugins.runtime.loop import ranks_if_any
from nemo_resiliency_plugins.runtime.not_working import report
from nemo_resiliency_plugins.runtime.preemption import early, workers
from nemo_resiliency_plugins.runtime.preemption.leaving import leave_for_restart, leave_set_up
from nemo_resiliency_plugins.runtime.preemption.listener import Listener
from nemo_resiliency_plugins.runtime.preemption.notice import Judge, signals_of
from nemo_resiliency_plugins.runtime.preemption.vote import LocalVote, Vote

if TYPE_CHECKING:
    from nemo_resiliency_plugins.runtime.agreement import Ranks

FEATURE = "preemption"
WHAT = "preemption was asked to be handled, but its signal is not noticed"


class NoPreemption:
    """Stands in where no notice is taken of signals."""

    told = False
    """Whether the script has been told to stop."""

    def attached(self) -> None:
        """Collective. There is something to lose from here on: the ranks vote."""

    def loop_begins(self) -> None:
        """Collective. The ranks are before a step."""

    def tick(self) -> bool:
        """Whether all ranks stop here; they all ask in the same order."""
        return False

    def check(self) -> None:
        """Whether the signals still come here: somebody may have installed another handler."""

    def saved(self, seconds: float) -> None:
        """On rank 0: a checkpoint has been written in so many seconds; a notice may leave less."""

    def since_notice_s(self) -> float:
        """Seconds since this rank has learned of the notice."""
        return 0.0

    def close(self, *, together: bool) -> None:
        """Signals are no longer listened to; ``together``: all ranks are here."""


def start(config: PreemptionConfig, identity: Identity, events: EventLog, *, strict: bool) -> NoPreemption:
    """Raises NotWorkingError under ``strict``, when it was asked for and cannot work."""
    if not config.exit_signal_handler:
        early.withdraw()
        return NoPreemption()
    if threading.current_thread() is not threading.main_thread():
        early.withdraw()
        reason, remedy = "the session is not opened in the main thread", "Open it there"
        report(WHAT, reason, remedy, feature=FEATURE, rank=identity.rank, events=events, strict=strict)
        return NoPreemption()
    return Preemption(config, identity, events, strict=strict)


class Preemption(NoPreemption):
    """Listens until :meth:`close`. Before :meth:`attached` nothing can be lost, and a notice ends the rank at once."""

    def __init__(self, config: PreemptionConfig, identity: Identity, events: EventLog, *, strict: bool) -> None:
        self._identity, self._events, self._strict = identity, events, strict
        self._judge = Judge.from_env(identity, os.environ)
        self._vote: LocalVote | None = None
        self._ranks: Ranks | None = None
        self._lost = False
        self._phase = threading.Lock()
        self._settled = self._closed = False
        self._noticed_at: float | None = None
        self._grace_s = config.grace_period_s
        self._reported: set[int] = set()
        self._owner = os.getpid()
        self._is_chained = False
        self._listener = Listener(signals_of(config), self._signalled)
        self._listener.start()
        workers.shield(self._listener)
        self._is_chained = any(self._listener.chained())
        for number, former in self._listener.chained():
            self._say(f"{_name(former)}, the handler of {_signal(number)} so far, is called at a notice as well")

    @property
    def told(self) -> bool:  # type: ignore[override]
        return self._vote is not None and self._vote.told

    def attached(self) -> None:
        if self._vote is not None:
            return
        self._ranks = ranks_if_any()  # with a group of its own, since its collectives run beside the main thread's
        vote = LocalVote()
        if self._ranks is not None and self._ranks.world_size > 1:
            vote = Vote(self._ranks.maximum, noticed=self._voted, broken=self._broken)
        with self._phase:
            self._vote = vote
            if self._noticed_at is not None:
                vote.notice()

    def loop_begins(self) -> None:
        self.attached()
        self.check()
        if self._vote is not None and not self._settled:
            self._settled = True
            self._vote.settle()

    def tick(self) -> bool:
        if self._vote is None:
            self.attached()
        assert self._vote is not None
        return self._vote.tick()

    def check(self) -> None:
        for number, handler in self._listener.replaced():
            if number not in self._reported:
                self._reported.add(number)
                self._report_replaced(number, handler)

    def saved(self, seconds: float) -> None:
        if self._grace_s is not None and seconds > self._grace_s:
            text = f"a checkpoint took {seconds:.0f} s, and a preemption leaves {self._grace_s:g} s"
            logger().warning(line(0, f"{text}: raise preempt_time, or write less"))
            self._grace_s = None

    def since_notice_s(self) -> float:
        return 0.0 if self._noticed_at is None else time.monotonic() - self._noticed_at

    def close(self, *, together: bool) -> None:
        if os.getpid() != self._owner:
            return
        with self._phase:
            self._closed = True
        workers.release()
        self._listener.stop()
        if self._vote is not None:
            self._vote.close(together=together)

    def _signalled(self, number: int) -> None:
        """In the listener's thread."""
        if self._lost or not self._judge.is_notice(number):
            leave_for_restart(self._events)
        with self._phase:
            if self._closed:
                return
            self._learn(_signal(number))
            if self._vote is not None:
                self._vote.notice()
            elif not self._is_chained:  # else the script's own handler is about to do what it has to do
                leave_set_up(self._identity)

    def _voted(self) -> None:
        """In the vote's thread: some rank has had a notice."""
        with self._phase:
            self._learn(None)

    def _learn(self, name: str | None) -> None:
        """Several signals are one notice."""
        if self._noticed_at is None:
            self._noticed_at = time.monotonic()
            phase = "set-up" if self._vote is None else "training"
            self._events.emit("preemption_notice", signal=name, phase=phase)
            self._say(f"preemption notice ({name or 'on another rank'}) in {phase}: all ranks save and leave")

    def _broken(self, error: Exception) -> None:
        """In the vote's thread: a rank is gone, or the script has destroyed the process groups."""
        if self._ranks is None or self._ranks.dissolved or self._closed:
            return
        with self._phase:
            self._lost = True
            self._events.emit("vote_lost", message=message_of(error))
            if self._noticed_at is not None:
                self._leave_without_the_others()

    def _leave_without_the_others(self) -> None:
        """What a single rank can still do about a notice, where a checkpoint needs all."""
        assert isinstance(self._vote, Vote)
        if self._vote.ticks == 0:
            leave_set_up(self._identity)
        elif not self._vote.holding:  # else the next tick raises
            leave_for_restart(self._events)

    def _report_replaced(self, number: int, handler: Any) -> None:
        name, remedy = _signal(number), "Install other handlers before the session, which calls them"
        if not callable(handler):
            reason, rank = f"something has replaced the session's handler of {name}", self._identity.rank
            report(WHAT, reason, remedy, feature=FEATURE, rank=rank, events=self._events, strict=self._strict)
            return
        self._events.emit("handler_replaced", signal=name, handler=_name(handler))
        text = f"{_name(handler)} has replaced the session's handler of {name}: both act on the signal now. {remedy}"
        if self._identity.rank == 0:
            logger().warning(line(0, f"{text}, or switch one of the two off."))

    def _say(self, text: str) -> None:
        if self._identity.rank == 0:
            logger().info(line(0, text))


def _signal(number: int) -> str:
    return signal.Signals(number).name


def _name(handler: Any) -> str:
    kind = type(handler)
    home = getattr(handler, "__module__", kind.__module__)
    return f"{home}.{getattr(handler, '__qualname__', kind.__qualname__)}"
