"""Who this process is: rank, world, node and attempt, read from the launcher's variables."""

from __future__ import annotations

import dataclasses
import os
import platform
from collections.abc import Mapping
from pathlib import Path

from nemo_resiliency_plugins.contract import ENV_DIR, ENV_NOTICE, NOTICE_ANY, Attempt


@dataclasses.dataclass(frozen=True)
class Identity:
    """``directory`` is the job's ``nrp`` directory, or None where nobody gave one."""

    rank: int
    world_size: int
    node: str
    attempt: Attempt
    directory: Path | None
    launched: bool

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Identity:
        env = os.environ if env is None else env
        # Slurm's own numbers are those of the ranks only where the node script has started the rank itself.
        of_slurm = env.get(ENV_NOTICE) == NOTICE_ANY
        rank, world = ("SLURM_PROCID", "SLURM_NTASKS") if of_slurm and "RANK" not in env else ("RANK", "WORLD_SIZE")
        return cls(
            rank=int(env.get(rank, "0")),
            world_size=int(env.get(world, "1")),
            node=env.get("SLURMD_NODENAME") or platform.node(),
            attempt=Attempt.from_env(env),
            directory=Path(env[ENV_DIR]).absolute() if env.get(ENV_DIR) else None,
            launched=rank in env,
        )
