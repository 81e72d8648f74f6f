"""Where the ranks of one life meet: each life has an address of its own, so that no key of an earlier one is read.

torch's ``init_process_group`` takes it from MASTER_ADDR and MASTER_PORT; rank 0 of the life serves there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

from nemo_resiliency_plugins.compat.inprocess import Turn
from nemo_resiliency_plugins.errors import ResiliencyError
from nemo_resiliency_plugins.runtime.rendezvous import free_port, own_address

POLL_S = 0.02
FIRST_NODE = "first_node"
CYCLE = "TORCHELASTIC_RESTART_COUNT"
"""How launchers tell a rank its restart, which names the life in events."""
CHANGED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", CYCLE)


class MeetingError(ResiliencyError):
    """Rank 0 of a life has not said where to meet."""


def adopt_numbers(env: MutableMapping[str, str]) -> None:
    """Where ``srun`` has started the ranks, its numbers are theirs; a process that nothing has started is alone."""
    if "RANK" not in env and "SLURM_PROCID" in env:
        env["RANK"], env["WORLD_SIZE"] = env["SLURM_PROCID"], env["SLURM_NTASKS"]
        env.setdefault("LOCAL_RANK", env.get("SLURM_LOCALID", "0"))
    env.setdefault("RANK", "0")
    env.setdefault("WORLD_SIZE", "1")
    if env["WORLD_SIZE"] == "1":
        env.setdefault("MASTER_ADDR", "127.0.0.1")
        env.setdefault("MASTER_PORT", str(free_port()))


@contextmanager
def kept_variables() -> Iterator[None]:
    """Put back afterwards what lives change; NVRx leaves ``RANK=None`` in a spare."""
    before = {name: os.environ.get(name) for name in CHANGED}
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def meet(turn: Turn, store: Any, *, node: str, first_address: str, limit_s: float) -> None:
    """Agree on an address for this life, and set it.

    Args:
        node: of this process.
        first_address: the MASTER_ADDR that the ranks were started with: the host of the first rank 0.
        limit_s: seconds to wait for rank 0.

    Raises:
        MeetingError: it has not answered.
    """
    if turn.iteration == 0 and turn.first_rank == 0:
        store.set(FIRST_NODE, node)
    key = f"meeting/{turn.iteration}"
    if turn.rank == 0:
        here = store.get(FIRST_NODE).decode() == node
        address = first_address if here else own_address(os.environ, nodes=2)
        store.set(key, f"{address}:{free_port()}")
    end = time.monotonic() + limit_s
    while not store.check([key]):  # a blocking wait would keep NVRx from interrupting it
        if time.monotonic() > end:
            raise MeetingError(f"rank 0 has not said within {limit_s:g} s where to meet")
        time.sleep(POLL_S)
    address, _, port = store.get(key).decode().rpartition(":")
    os.environ.update(MASTER_ADDR=address, MASTER_PORT=port)
