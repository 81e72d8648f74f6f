"""Signals of a script without a session: it is told of a notice, and it ends as it would have ended without us."""

from __future__ import annotations

import signal
import threading

from nemo_resiliency_plugins.config import PreemptionConfig
from nemo_resiliency_plugins.runtime.events import EventLog
from nemo_resiliency_plugins.runtime.identity import Identity
from nemo_resiliency_plugins.runtime.log import line, logger
from nemo_resiliency_plugins.runtime.preemption import workers
from nemo_resiliency_plugins.runtime.preemption.leaving import leave_for_restart, leave_unsaved
from nemo_resiliency_plugins.runtime.preemption.listener import Listener
from nemo_resiliency_plugins.runtime.preemption.notice import Judge, signals_of


class Bystander:
    """From its creation in the main thread on. ``told``: whether there was a notice."""

    def __init__(self, config: PreemptionConfig, identity: Identity, events: EventLog, judge: Judge) -> None:
        self._identity, self._events, self._judge = identity, events, judge
        self.told = False
        self._listener = Listener(signals_of(config), self._signalled)
        self._listener.start()
        workers.shield(self._listener)

    def give_way(self) -> None:
        """A session takes over; one outside the main thread takes no notice of signals, and nothing changes."""
        if threading.current_thread() is threading.main_thread():
            workers.release()
            self._listener.stop()

    def _signalled(self, number: int) -> None:
        """In the listener's thread, so that a rank that waits in a collective leaves as fast as without a handler."""
        is_notice = self._judge.is_notice(number)
        has_own = number in dict(self._listener.replaced())
        if is_notice:
            self._tell(signal.Signals(number).name, has_own)
        if has_own:
            return
        if is_notice:
            leave_unsaved(number)
        leave_for_restart(self._events)

    def _tell(self, name: str, has_own: bool) -> None:
        if self.told:
            return
        self.told = True
        self._events.emit("preemption_notice", signal=name, phase="training")
        if self._identity.rank == 0:
            what = "the script's own handler decides" if has_own else "the script has no handler for it and ends"
            logger().warning(line(0, f"preemption notice ({name}): {what}"))
