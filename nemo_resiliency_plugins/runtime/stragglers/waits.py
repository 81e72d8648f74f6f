"""A clock of a rank's own work: it stands still while the training thread waits in a collective."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any


class OwnClock:
    """Patches ``torch.distributed.Work.wait`` until :meth:`close`.

    Every collective of torch's Python API waits there, those of FSDP2 included (torch 2.13). The reducer of DDP and
    functional collectives wait in C++, unseen.
    """

    def __init__(self) -> None:
        from torch.distributed import Work

        self._work: Any = Work
        self._wait: Callable[..., Any] = Work.wait
        self._waited = 0.0
        self._thread = threading.get_ident()
        clock = self

        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return clock._wait(work, *args, **kwargs)
            finally:
                if threading.get_ident() == clock._thread:
                    clock._waited += time.perf_counter() - began

        self._patch = wait
        Work.wait = wait  # type: ignore[assignment, method-assign]

    def now(self) -> float:
        """Seconds of own work since some moment."""
        return time.perf_counter() - self._waited

    def close(self) -> None:
        """Leaves alone what somebody else has put in its place since."""
        if self._work.wait is self._patch:
            self._work.wait = self._wait
