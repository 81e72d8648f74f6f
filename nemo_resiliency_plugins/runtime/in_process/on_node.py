"""What a node script does for a rank that restarts in its process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from nemo_resiliency_plugins.contract import ENV_NOTICE, NOTICE_LAUNCHER

STORE = "nrp-store"
"""The name of the process through which the ranks agree."""
POLL_S = 0.1


def of_rank(endpoint: str, *, noticed: bool) -> dict[str, str]:
    """The variables that a launcher would give it.

    NVRx ends a rank beyond its hard timeout by SIGTERM. So a signal is a notice only where the node script has had it
    too, as below a launcher.
    """
    address, _, port = endpoint.rpartition(":")
    notice = {ENV_NOTICE: NOTICE_LAUNCHER} if noticed else {}
    return {
        "RANK": os.environ["SLURM_PROCID"],
        "WORLD_SIZE": os.environ["SLURM_NTASKS"],
        "LOCAL_RANK": os.environ["SLURM_LOCALID"],
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
        **notice,
    }


def linger(left: Callable[[], Iterator[int]], limit_s: float) -> None:
    """Return when nothing of the rank is left, or nothing but a store and a monitor after ``limit_s``.

    The rank's monitor process tells the others that it is gone, and the store serves them until they are done.
    """
    end = time.monotonic() + limit_s
    while pids := list(left()):
        if time.monotonic() > end and STORE not in map(_name, pids):
            return
        time.sleep(POLL_S)


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
