"""One life of a train function in this process, and what must be gone before the next one."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator

from nemo_resiliency_plugins.errors import ResiliencyError
from nemo_resiliency_plugins.runtime.in_process import checks
from nemo_resiliency_plugins.runtime.loop import Loop

OURS = ("nrp-", "writer of the")
"""How the names of the runtime's threads begin."""
POLL_S = 0.02


class UncleanError(ResiliencyError):
    """Something of a life outlives it in this process."""


class Life:
    """From the entry into the train function until everything of it is gone.

    Args:
        limit_s: seconds that threads of the life have to end after it.
        hard_timeout: seconds, see InProcessRestartConfig.
    """

    def __init__(self, limit_s: float, hard_timeout: float) -> None:
        self.limit_s, self.hard_timeout = limit_s, hard_timeout
        self.loop: Loop | None = None
        self.over = threading.Event()
        """The main thread has left the train function."""
        self._threads_before = set(threading.enumerate())

    @property
    def step(self) -> int | None:
        """The step that runs, or in which the training loop was left."""
        return self.loop.in_step if self.loop else None

    @property
    def resumed(self) -> int | None:
        return self.loop.resumed if self.loop else None

    def left(self) -> list[str]:
        """The names of the runtime's threads that the life has started and that still run."""
        new = set(threading.enumerate()) - self._threads_before
        return sorted(thread.name for thread in new if thread.name.startswith(OURS))

    def clean(self, destroy: Callable[[], None]) -> None:
        """Let go of process groups and memory, and wait for threads.

        ``destroy`` forgets the process groups. With gloo a peer that waits in a collective leaves it only when this
        rank's sockets close, and they close with the last reference to the group.

        Raises:
            UncleanError: a thread has not ended, a writer say, whose late commit would meet the next life's saves.
        """
        destroy()
        gc.collect()
        end = time.monotonic() + self.limit_s
        while left := self.left():
            if time.monotonic() > end:
                raise UncleanError(f"still running {self.limit_s:g} s after the fault: {', '.join(left)}")
            time.sleep(POLL_S)  # not join(): NVRx sees progress only where the main thread runs Python


_current: Life | None = None


@contextlib.contextmanager
def lived(limit_s: float, hard_timeout: float) -> Iterator[Life]:
    """The life that sessions opened inside belong to."""
    global _current
    _current = life = Life(limit_s, hard_timeout)
    try:
        yield life
    finally:
        _current = None


def opened(loop: Loop) -> None:
    """A session has been opened, with this training loop."""
    if _current is not None:
        _current.loop = loop


def close_limit_s() -> float | None:
    """Seconds that a failed session may take to close; None outside a life: as configured."""
    return _current.limit_s if _current is not None else None


def check_group_timeouts() -> None:
    """Raises ConfigError: in a life whose process groups end the process before ``hard_timeout``."""
    if _current is not None:
        checks.check_group_timeouts(_current.hard_timeout)


def forget_frames(error: BaseException) -> None:
    """Release what the frames of an error hold: model, optimizer, process groups."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        each = pending.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            traceback.clear_frames(each.__traceback__)
            pending += [each.__cause__, each.__context__]


def empty_cuda_cache() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
