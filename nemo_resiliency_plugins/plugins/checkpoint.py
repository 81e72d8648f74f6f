"""CheckpointPlugin: how the session of the job saves its attached state."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import nemo_run as run
from nemo_run.core.execution.base import Executor

from nemo_resiliency_plugins.config import CheckpointConfig
from nemo_resiliency_plugins.config.rules import changed_fields
from nemo_resiliency_plugins.plugins.edits import Edit, Note
from nemo_resiliency_plugins.plugins.script_args import CheckpointPluginScriptArgs
from nemo_resiliency_plugins.plugins.session_plugin import SessionPlugin


@dataclasses.dataclass(kw_only=True)
class CheckpointPlugin(SessionPlugin):
    """Choose how checkpoints are written, without a change to the training script.

    Attributes:
        async_save: write a copy of the state while the training goes on.
        ckpt_format: ``torch_dist`` (torch.distributed.checkpoint); no other format can be saved asynchronously.
        non_persistent_local_ckpt_dir: a directory on each node's own disk, for the local tier.
        non_persistent_local_ckpt_algo: ``fully_parallel``: of what ranks hold alike, each writes a part.
        non_persistent_save_interval: steps between saves to the local tier.
        tolerated_save_failures: failed saves in a row that are warnings; a failed last save is always an error.
        drain_timeout_s: seconds to wait for a writer before it counts as dead.
        start_over: begin at step 0 when checkpoints are there and none of them can be resumed from.
        overrides, script_args_converter_fn, trains, strict: see :class:`SessionPlugin`.

    Raises:
        ConfigError: at construction, for a value that breaks its rule.
    """

    async_save: bool = False
    ckpt_format: str = "torch_dist"
    non_persistent_local_ckpt_dir: str | None = None
    non_persistent_local_ckpt_algo: str = "fully_parallel"
    non_persistent_save_interval: int | None = None
    tolerated_save_failures: int = 0
    drain_timeout_s: float = 300.0
    start_over: bool = False

    CONFIG = CheckpointConfig
    SCRIPT_ARGS = CheckpointPluginScriptArgs

    def notes(self, task: run.Partial | run.Script, executor: Executor) -> Iterator[Edit]:
        missing = self.job_config().missing_for_local_tier
        if missing is not None:
            text = f"no local tier unless the script sets {missing}: it takes a directory and an interval"
            yield Note(self.name, text, warn=True)
        elif self.non_persistent_local_ckpt_dir is None and "non_persistent_local_ckpt_algo" in changed_fields(self):
            text = "non_persistent_local_ckpt_algo has no effect unless the script sets non_persistent_local_ckpt_dir"
            yield Note(self.name, text, warn=True)
