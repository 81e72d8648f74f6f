"""Signals before the session exists: what the stub of a rank does when a node script has started it."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
from types import FrameType
from typing import Any

from nemo_resiliency_plugins.config import PreemptionConfig
from nemo_resiliency_plugins.config.preemption import PREEMPTION_SIGNALS
from nemo_resiliency_plugins.contract import ENV_NOTICE
from nemo_resiliency_plugins.runtime.effective import resolve
from nemo_resiliency_plugins.runtime.events import EventLog
from nemo_resiliency_plugins.runtime.identity import Identity
from nemo_resiliency_plugins.runtime.preemption.leaving import leave_for_restart, leave_set_up
from nemo_resiliency_plugins.runtime.preemption.notice import Judge, has_notice, signals_of

SIGNALS = [signal.Signals[name] for name in PREEMPTION_SIGNALS]


@dataclasses.dataclass
class EarlyHandler:
    """Leaves at once: nothing can be lost yet."""

    identity: Identity
    events: EventLog
    judge: Judge
    owner: int | None = dataclasses.field(default_factory=os.getpid)
    formers: dict[int, Any] = dataclasses.field(default_factory=dict)

    def __call__(self, number: int, _: FrameType | None) -> None:
        if os.getpid() != self.owner:  # a forked child of the script is no rank; and see withdraw()
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif self.judge.is_notice(number):
            self.events.emit("preemption_notice", signal=signal.Signals(number).name, phase="start")
            leave_set_up(self.identity)
        else:
            leave_for_restart(self.events)


def is_doomed(identity: Identity) -> bool:
    """Whether this rank is started in an allocation whose end has been announced."""
    return ENV_NOTICE in os.environ and has_notice(identity)


def install(identity: Identity, events: EventLog) -> None:
    """For scripts that open a session: only there it is known that nothing is lost, and that the session takes over."""
    if ENV_NOTICE not in os.environ:
        return
    handler = EarlyHandler(identity, events, Judge.from_env(identity, os.environ))
    for number in signals_of(resolve(PreemptionConfig, None, os.environ)):
        handler.formers[number] = signal.signal(number, handler)


def former_of(number: int) -> Any:
    """The handler of a signal, or what it was before ours."""
    handler = signal.getsignal(number)
    return handler.formers[number] if isinstance(handler, EarlyHandler) else handler


def withdraw() -> None:
    """A session that does not listen leaves the signals as they were; outside the main thread, to the same effect."""
    for number in SIGNALS:
        handler = signal.getsignal(number)
        if isinstance(handler, EarlyHandler):
            handler.owner = None
            if threading.current_thread() is threading.main_thread():
                signal.signal(number, handler.formers[number])


def unblock() -> None:
    """Undo what the launcher's shield has left in a process that it has started."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def leave_no_trace() -> None:
    """Before this process becomes another program: ignored and blocked signals would outlive that."""
    unblock()
    if ENV_NOTICE not in os.environ:
        return
    for number in SIGNALS:
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
