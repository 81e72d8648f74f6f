"""Forked children of a rank: a signal to the whole process group may not take the data-loader workers from it.

The workers serve until the rank has saved, and end with it. A plain ``os.fork`` child gets back the signals as they
were before the session. Children that multiprocessing starts by *spawn* or *forkserver* are not reached.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from multiprocessing import util

from nemo_resiliency_plugins.runtime.preemption.listener import Listener

PARENT_CHECK_S = 1.0


class Shield:
    """What a forked child does about the signals of ``listener``."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self._in_worker = False
        self._mask = threading.local()
        util.register_after_fork(self, Shield.in_worker)  # kept for as long as this object lives

    def before_fork(self) -> None:
        """A signal that reaches the child before :meth:`in_child` would write into the parent's descriptor."""
        self._mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, self.listener.numbers)

    def in_parent(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask.before)

    def in_child(self) -> None:
        """Runs first in every forked child, also in that of a worker."""
        if self._in_worker:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, self.listener.numbers)
        else:
            self.listener.forget_in_child()
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask.before)

    def in_worker(self) -> None:
        """Runs then in a child of multiprocessing.

        Blocked, and not handled: torch's worker loop installs a handler of its own, in C, that dies.
        """
        self._in_worker = True
        signal.pthread_sigmask(signal.SIG_BLOCK, self.listener.numbers)
        arguments = (self.listener.numbers, os.getppid())
        threading.Thread(target=_obey_parent_alone, args=arguments, name="nrp-signals", daemon=True).start()


_shield: Shield | None = None


def shield(listener: Listener) -> None:
    """Until :func:`release`."""
    global _shield
    _shield = Shield(listener)


def release() -> None:
    global _shield
    _shield = None


def _call(hook: Callable[[Shield], None]) -> Callable[[], None]:
    """Hooks of ``fork`` stay for the life of the process, shields do not."""

    def call() -> None:
        if _shield is not None:
            hook(_shield)

    return call


os.register_at_fork(
    before=_call(Shield.before_fork), after_in_parent=_call(Shield.in_parent), after_in_child=_call(Shield.in_child)
)


def _obey_parent_alone(numbers: frozenset[signal.Signals], parent: int) -> None:
    """End when the parent says so (``Process.terminate``), or, after anybody else's signal, when it is gone."""
    sender: signal.struct_siginfo | None = signal.sigwaitinfo(numbers)
    while os.getppid() == parent and (sender is None or sender.si_pid != parent):
        sender = signal.sigtimedwait(numbers, PARENT_CHECK_S)
    os._exit(0)
