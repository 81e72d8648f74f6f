"""Checkpoints."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from nemo_resiliency_plugins.config.rules import (
    A_COUNT,
    A_PATH,
    A_STEP,
    A_SWITCH,
    POSITIVE,
    Rule,
    one_of,
    optional,
    validate,
)
from nemo_resiliency_plugins.errors import ConfigError


@dataclasses.dataclass
class CheckpointConfig:
    """How an attached state is saved. Names up to ``non_persistent_save_interval`` are Megatron-Bridge's.

    Attributes:
        async_save: write a copy of the state while the training goes on.
        ckpt_format: the session itself writes ``torch_dist`` (torch.distributed.checkpoint) alone.
        non_persistent_local_ckpt_dir: a directory on each node's own disk, for the local tier.
        non_persistent_local_ckpt_algo: ``fully_parallel``: of what ranks hold alike, each writes a part.
        non_persistent_save_interval: steps between saves to the local tier.
        tolerated_save_failures: failed saves in a row that are warnings; a failed last save is always an error.
        drain_timeout_s: seconds to wait for a writer before it counts as dead.
        start_over: begin at step 0 when checkpoints are there and none of them can be resumed from.
    """

    async_save: bool = False
    ckpt_format: str = "torch_dist"
    non_persistent_local_ckpt_dir: str | None = None
    non_persistent_local_ckpt_algo: str = "fully_parallel"
    non_persistent_save_interval: int | None = None
    tolerated_save_failures: int = 0
    drain_timeout_s: float = 300.0
    start_over: bool = False

    PLUGIN: ClassVar[str] = "checkpoint"
    RULES: ClassVar[dict[str, Rule]] = {
        "async_save": A_SWITCH,
        "ckpt_format": one_of("torch_dist", "torch", "zarr", "fsdp_dtensor"),
        "non_persistent_local_ckpt_dir": optional(A_PATH),
        "non_persistent_local_ckpt_algo": one_of("fully_parallel", "atomic"),
        "non_persistent_save_interval": optional(A_STEP),
        "tolerated_save_failures": A_COUNT,
        "drain_timeout_s": POSITIVE,
        "start_over": A_SWITCH,
    }

    def __post_init__(self) -> None:
        validate(type(self).__name__, self, self.RULES)
        if self.async_save and self.ckpt_format != "torch_dist":
            remedy = 'Set ckpt_format="torch_dist" or async_save=False.'
            raise ConfigError("CheckpointConfig.ckpt_format", self.ckpt_format, "has no async_save", remedy)

    @property
    def missing_for_local_tier(self) -> str | None:
        """The field that an otherwise configured local tier lacks.

        No error: the plugin may set one half, and the script the other.
        """
        directory, every = self.non_persistent_local_ckpt_dir, self.non_persistent_save_interval
        if (directory is None) == (every is None):
            return None
        return "non_persistent_local_ckpt_dir" if directory is None else "non_persistent_save_interval"
