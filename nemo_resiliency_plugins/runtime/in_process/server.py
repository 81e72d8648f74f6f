"""The store through which NVRx's wrappers agree, served by a process of its own: rank 0 may be lost as well."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from nemo_resiliency_plugins.runtime.in_process.on_node import STORE
from nemo_resiliency_plugins.runtime.log import logger

ESTABLISHED = "01"
IDLE_S, LOOK_S = 1.0, 0.25


def start() -> None:
    """Serve MASTER_ADDR:MASTER_PORT until this process has ended and nobody is connected any more.

    Returns when it can be reached. Nothing is done where something serves there, such as torchrun's agent or the
    server of an earlier call. Forked, since a fresh interpreter would first import torch; NVRx forks its monitors in
    the same place.
    """
    rank = os.getpid()
    began = _began(rank)
    told, tell = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, from Python 3.12 on
        between = os.fork()
    if between == 0:
        if os.fork() == 0:
            _serve_and_leave(lambda: _began(rank) == began, tell)
        os._exit(0)
    os.close(tell)
    os.waitpid(between, 0)
    with os.fdopen(told) as answer:
        if reason := answer.read():
            logger().info(f"the ranks agree through a store that was there before: {reason}")


def _serve_and_leave(is_wanted: Callable[[], bool], tell: int) -> None:
    try:
        os.setsid()
        os.chdir("/")
        Path("/proc/self/comm").write_text(STORE)
        _let_go_of_files(tell)
        _serve(is_wanted, tell)
    except (OSError, RuntimeError) as error:
        os.write(tell, str(error).partition("\n")[0].encode())
    finally:
        os._exit(0)


def _let_go_of_files(kept: int) -> None:
    """Whoever waits for the end of a pipe of the rank does not wait for this process."""
    last = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    os.closerange(0, kept)
    os.closerange(kept + 1, last + 1)
    for _ in range(3):
        os.open(os.devnull, os.O_RDWR)


def _serve(is_wanted: Callable[[], bool], tell: int) -> None:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(address, port, is_master=True, wait_for_workers=False)
    os.close(tell)
    used = time.monotonic()
    while time.monotonic() - used < IDLE_S:
        if is_wanted() or connections(port) > 1:  # one is the server's own
            used = time.monotonic()
        time.sleep(LOOK_S)
    del store


def connections(port: int) -> int:
    """How many established connections end at ``port`` of this machine."""
    found = 0
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        if Path(table).exists():
            rows = [line.split() for line in Path(table).read_text().splitlines()[1:]]
            found += sum(row[3] == ESTABLISHED and int(row[1].rpartition(":")[2], 16) == port for row in rows)
    return found


def _began(pid: int) -> str | None:
    """When a process has begun, in the kernel's ticks; None of one that has ended."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else fields[18]
