"""A clock of a rank's own work: it stands still while the training thread waits for other ranks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any


class OwnClock:
    """Patches the places where a rank waits, until :meth:`close`.

    Every collective of torch's Python API waits in ``Work.wait``, those of FSDP2 included, and DDP waits for rank 0
    when it sends its buffers round before a forward pass (torch 2.13). Functional collectives wait in C++, unseen; so
    does the reducer of DDP, see :class:`Phases`.
    """

    def __init__(self) -> None:
        self._waited, self._is_waiting = 0.0, False
        self._thread = threading.get_ident()
        self._patches = [(owner, name, self._timed(owner, name)) for owner, name in _waiting_places()]

    def now(self) -> float:
        """Seconds of own work since some moment."""
        return time.perf_counter() - self._waited

    def close(self) -> None:
        """Leaves alone what somebody else has put in their place since."""
        for owner, name, (original, patch) in self._patches:
            if getattr(owner, name) is patch:
                setattr(owner, name, original)

    def _timed(self, owner: Any, name: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
        original = getattr(owner, name)

        def wait(*args: Any, **kwargs: Any) -> Any:
            if self._is_waiting or threading.get_ident() != self._thread:
                return original(*args, **kwargs)
            self._is_waiting, began = True, time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                self._is_waiting = False
                self._waited += time.perf_counter() - began

        setattr(owner, name, wait)
        return original, wait


def _waiting_places() -> Iterator[tuple[Any, str]]:
    from torch.distributed import Work
    from torch.nn.parallel import DistributedDataParallel

    yield Work, "wait"
    if hasattr(DistributedDataParallel, "_distributed_broadcast_coalesced"):
        yield DistributedDataParallel, "_distributed_broadcast_coalesced"
