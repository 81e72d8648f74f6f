"""Notices signals whatever the main thread is doing.

A Python handler runs in the main thread alone, between two of its instructions: not while it sits in a collective.
But the byte on the wake-up descriptor is written at once, and a thread reads it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, TypeGuard

from nemo_resiliency_plugins.runtime.preemption import early

END = b"\0"
"""No signal has this number."""
END_S = 5.0


class Listener:
    """From :meth:`start` to :meth:`stop`, both in the main thread, ``signalled`` is called for each signal.

    That happens in the listener's thread. What handled the signals before is called as before, in the main thread.
    """

    def __init__(self, numbers: frozenset[signal.Signals], signalled: Callable[[int], None]) -> None:
        self.numbers = numbers
        self._signalled = signalled
        self._formers: dict[int, Any] = {}
        self._thread = threading.Thread(target=self._listen, name="nrp-signals", daemon=True)

    def start(self) -> None:
        """Raises ValueError outside the main thread."""
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._former_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._thread.start()
        for number in self.numbers:
            self._formers[number] = early.former_of(number)
            signal.signal(number, self._handle)

    def stop(self) -> None:
        """Put back what was there, except where somebody has put something else in our place since."""
        for number in self._formers:
            self._put_back(number)
        current = _set_wakeup_fd(self._former_fd)
        if current not in (-1, self._writer.fileno()):
            _set_wakeup_fd(current)
        self._writer.send(END)
        self._thread.join(END_S)
        self._close()

    def chained(self) -> Iterator[tuple[int, Any]]:
        """The handlers that ours calls."""
        return ((number, former) for number, former in self._formers.items() if _is_users(former))

    def replaced(self) -> Iterator[tuple[int, Any]]:
        """The handlers that somebody has put in the place of ours; takes the wake-up descriptor back."""
        if threading.current_thread() is threading.main_thread():
            self._take_back_wakeup_fd()
        handlers = ((number, signal.getsignal(number)) for number in self.numbers)
        return ((number, handler) for number, handler in handlers if handler != self._handle)

    def forget_in_child(self) -> None:
        """In a forked child: its signals are no business of the parent's."""
        _set_wakeup_fd(-1)
        for number in self._formers:
            self._put_back(number)
        self._close()

    def _take_back_wakeup_fd(self) -> bool:
        """Whether somebody had taken it: asyncio does, and leaves none behind (Python 3.10 to 3.12)."""
        current = _set_wakeup_fd(self._writer.fileno())
        if current == self._writer.fileno():
            return False
        self._former_fd = current
        return True

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._take_back_wakeup_fd():
            self._writer.send(bytes([number]))
        former = self._formers.get(number)
        if _is_users(former):
            former(number, frame)

    def _listen(self) -> None:
        while True:
            received = self._reader.recv(64)
            self._forward(received.replace(END, b""))
            for number in received:
                if number in self.numbers:
                    self._signalled(number)
            if END in received:
                return

    def _forward(self, received: bytes) -> None:
        if self._former_fd != -1 and received:
            with contextlib.suppress(OSError):  # its owner may have closed it, or not read for long
                os.write(self._former_fd, received)

    def _put_back(self, number: int) -> None:
        if signal.getsignal(number) == self._handle:
            former = self._formers[number]
            # Python cannot put back a handler that was not installed from Python, which it shows as None.
            signal.signal(number, signal.SIG_DFL if former is None else former)

    def _close(self) -> None:
        self._reader.close()
        self._writer.close()


def _is_users(handler: Any) -> TypeGuard[Callable[..., object]]:
    """Python's own handler of SIGINT would raise in the middle of the step that is still to be done."""
    return callable(handler) and handler is not signal.default_int_handler


def _set_wakeup_fd(handle: int) -> int:
    """Returns the former one; a descriptor that its owner has closed is as good as none."""
    try:
        return signal.set_wakeup_fd(handle, warn_on_full_buffer=False)
    except (OSError, ValueError):
        return signal.set_wakeup_fd(-1)
