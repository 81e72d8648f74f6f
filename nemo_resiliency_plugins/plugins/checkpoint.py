"""CheckpointPlugin: how the session of the job saves its attached state."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import nemo_run as run
from nemo_run.core.execution.base import Executor

from nemo_resiliency_plugins.config import CheckpointConfig
from nemo_resiliency_plugins.config.rules import A_COUNT, A_SWITCH, Rule, changed_fields, field_names, one_of, validate
from nemo_resiliency_plugins.errors import ConfigError, UnsupportedError
from nemo_resiliency_plugins.plugins import on_slurm
from nemo_resiliency_plugins.plugins.base import ResiliencyPlugin
from nemo_resiliency_plugins.plugins.edits import Edit, Note
from nemo_resiliency_plugins.plugins.script_args import (
    MEGATRON_BRIDGE,
    CheckpointPluginScriptArgs,
    argument_edits,
    require_module_level,
)
from nemo_resiliency_plugins.plugins.telling import by_variables, without_effect

NAME = "CheckpointPlugin"


@dataclasses.dataclass(kw_only=True)
class CheckpointPlugin(ResiliencyPlugin):
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
        overrides: ``"megatron_bridge"`` adds hydra-style overrides to the script's arguments.
        script_args_converter_fn: makes script arguments from a :class:`CheckpointPluginScriptArgs`.
        trains: which task of a task group trains; the others start without the node script (Slurm).
        strict: what cannot work is an error instead of a warning, here and in the job.

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
    overrides: str | None = None
    script_args_converter_fn: Callable[[CheckpointPluginScriptArgs], list[str]] | None = None
    trains: int = 0
    strict: bool = False

    def __post_init__(self) -> None:
        validate(NAME, self, RULES)
        require_module_level(f"{NAME}.script_args_converter_fn", self.script_args_converter_fn)
        try:
            self.job_config()
        except ConfigError as error:
            field = f"{NAME}.{error.field.rpartition('.')[2]}"
            raise ConfigError(field, error.value, error.rule, error.remedy) from None

    def job_config(self) -> CheckpointConfig:
        """What the session in the job is told."""
        return CheckpointConfig(**{name: getattr(self, name) for name in field_names(CheckpointConfig)})

    def plan(self, task: run.Partial | run.Script, executor: Executor) -> tuple[Edit, ...]:
        arguments = (*self._half_a_local_tier(), *argument_edits(NAME, task, self._script_arguments()))
        told = changed_fields(self.job_config())
        if isinstance(executor, run.SlurmExecutor):
            claims = {f"config.{CheckpointConfig.PLUGIN}": told}
            planned = on_slurm.plan(NAME, task, executor, claims=claims, trains=self.trains, strict=self.strict)
            return (*arguments, *planned)
        if isinstance(executor, run.LocalExecutor):
            variables = by_variables(NAME, CheckpointConfig.PLUGIN, told, strict=self.strict)
            return (*arguments, *variables, *without_effect(NAME, self, ["trains"]))
        rule = "is not supported; run.SlurmExecutor and run.LocalExecutor are"
        remedy = "On other systems give session() a CheckpointConfig in the script."
        raise UnsupportedError("executor", type(executor).__name__, rule, remedy)

    def _half_a_local_tier(self) -> Iterator[Edit]:
        missing = self.job_config().missing_for_local_tier
        if missing is not None:
            yield Note(
                NAME, f"no local tier unless the script sets {missing}: it takes a directory and an interval", warn=True
            )

    def _script_arguments(self) -> list[str]:
        fields = field_names(CheckpointPluginScriptArgs)
        args = CheckpointPluginScriptArgs(**{name: getattr(self, name) for name in fields})
        if self.script_args_converter_fn is not None:
            return list(self.script_args_converter_fn(args))
        return args.overrides() if self.overrides == MEGATRON_BRIDGE else []


RULES: dict[str, Rule] = {
    "overrides": one_of(None, MEGATRON_BRIDGE),
    "trains": A_COUNT,
    "strict": A_SWITCH,
}
