"""The store through which NVRx's wrappers agree, served by a process of its own: rank 0 may be lost as well."""

from __future__ import annotations

import os
import time
import warnings
from pathlib import Path

from nemo_resiliency_plugins.runtime.inprocess.on_node import STORE

ESTABLISHED = "01"
IDLE_S, UNUSED_S, LOOK_S = 1.0, 300.0, 0.25


def start() -> None:
    """Serve MASTER_ADDR:MASTER_PORT until nobody is connected any more; nothing is done where something serves there.

    Forked, since a fresh interpreter would first import torch; NVRx forks its monitors in the same place.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, from Python 3.12 on
        between = os.fork()
    if between == 0:
        if os.fork() == 0:
            _serve_and_leave()
        os._exit(0)
    os.waitpid(between, 0)


def _serve_and_leave() -> None:
    try:
        os.setsid()
        os.chdir("/")
        Path("/proc/self/comm").write_text(STORE)
        _let_go_of_files()
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = TCPStore(address, port, is_master=True, wait_for_workers=False)
        _await_the_last(port)
        del store
    finally:
        os._exit(0)


def _let_go_of_files() -> None:
    """Whoever waits for the end of a pipe of the rank does not wait for this process."""
    os.closerange(0, max(int(path.name) for path in Path("/proc/self/fd").iterdir()) + 1)
    for _ in range(3):
        os.open(os.devnull, os.O_RDWR)


def _await_the_last(port: int) -> None:
    """Return when no one else is connected to this process's server."""
    began = last = time.monotonic()
    used = False
    while time.monotonic() - last < IDLE_S or not (used or time.monotonic() - began > UNUSED_S):
        if connections(port) > 1:  # one is the server's own
            last, used = time.monotonic(), True
        time.sleep(LOOK_S)


def connections(port: int) -> int:
    """How many established connections end at ``port`` of this machine."""
    found = 0
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        if Path(table).exists():
            rows = [line.split() for line in Path(table).read_text().splitlines()[1:]]
            found += sum(row[3] == ESTABLISHED and int(row[1].rpartition(":")[2], 16) == port for row in rows)
    return found
