"""Who this process is: rank, world, node and attempt, read from the launcher's variables."""

from __future__ import annotations

import dataclasses
import os
import platform
from collections.abc import Mapping
from pathlib import Path

from nemo_resiliency_plugins.contract import ENV_DIR, ENV_NOTICE, NOTICE_ANY, Attempt
from nemo_resiliency_plugins.errors import ConfigError


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
        """Raises ConfigError for a rank or world size that is no number."""
        env = os.environ if env is None else env
        # Slurm's own numbers are those of the ranks only where the node script has started the rank itself.
        of_slurm = env.get(ENV_NOTICE) == NOTICE_ANY
        rank, world = ("SLURM_PROCID", "SLURM_NTASKS") if of_slurm and "RANK" not in env else ("RANK", "WORLD_SIZE")
        return cls(
            rank=_number(env, rank, 0),
            world_size=_number(env, world, 1),
            node=env.get("SLURMD_NODENAME") or platform.node(),
            attempt=Attempt.from_env(env),
            directory=Path(env[ENV_DIR]).absolute() if env.get(ENV_DIR) else None,
            launched=bool(env.get(rank)),
        )


def _number(env: Mapping[str, str], name: str, default: int) -> int:
    """Raises ConfigError for what is no count; empty is as good as unset."""
    text = env.get(name) or str(default)
    if not text.isdecimal():
        raise ConfigError(
            name, text, "must be a whole number, as launchers set it", "Unset it, or start by a launcher."
        )
    return int(text)
