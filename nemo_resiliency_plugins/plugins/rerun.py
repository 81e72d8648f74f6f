"""RerunStateMachinePlugin: suspect results are tried again, on the same device and if need be on another node."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import nemo_run as run
from nemo_run.core.execution.base import Executor

from nemo_resiliency_plugins.config import RerunStateMachineConfig
from nemo_resiliency_plugins.config.rerun import NOTHING, VALIDATE
from nemo_resiliency_plugins.config.rules import A_COUNT, A_SWITCH, Rule, changed_fields, field_names, one_of, validate
from nemo_resiliency_plugins.errors import UnsupportedError
from nemo_resiliency_plugins.plugins import on_slurm
from nemo_resiliency_plugins.plugins.base import ResiliencyPlugin
from nemo_resiliency_plugins.plugins.edits import Edit, Note, script_arguments
from nemo_resiliency_plugins.plugins.given_arguments import given_fields
from nemo_resiliency_plugins.plugins.script_args import (
    MEGATRON_BRIDGE,
    RerunStateMachinePluginScriptArgs,
    argument_edits,
    require_module_level,
)
from nemo_resiliency_plugins.plugins.straggler import MAX_NODE_EXCLUSIONS
from nemo_resiliency_plugins.plugins.telling import by_variables, without_effect

NAME = "RerunStateMachinePlugin"
SECTION = RerunStateMachineConfig.PLUGIN
SLURM_ONLY = ("max_node_exclusions", "trains")
NOWHERE_ELSE = "a suspect result that comes again ends the run with code 16: LocalExecutor has no other node"


@dataclasses.dataclass(kw_only=True)
class RerunStateMachinePlugin(ResiliencyPlugin):
    """Run a step with a suspect result again; what is suspect once more is tried on another node (Slurm).

    The first four parameters are those of Megatron-Bridge's ``RerunStateMachineConfig``, with its defaults except for
    ``rerun_mode``: who adds the plugin wants it.

    Attributes:
        rerun_mode: ``"validate_results"``, ``"report_determinism_stats"`` (steps run twice, and the differences are
            reported) or ``"disabled"``.
        check_for_nan_in_loss: NaN or Inf in the loss is suspect.
        check_for_spiky_loss: a loss far above those before it is suspect.
        spiky_loss_factor: so many times the largest magnitude in the window makes a spike.
        check_for_nan_in_gradients: NaN or Inf in the gradients is suspect.
        spike_warmup_steps: steps of the training that are neither checked for spikes nor part of the window.
        spike_window: steps that the window spans.
        tolerance: relative difference up to which two results are the same; 0 is bit for bit.
        accept: what is trained on although it came again after a restart: ``"nothing"``, ``"spikes"`` or
            ``"everything"``.
        determinism_interval: of so many steps one runs twice, under ``"report_determinism_stats"``.
        max_node_exclusions: nodes that a job leaves; after that it runs again where it is (Slurm).
        overrides: ``"megatron_bridge"`` adds hydra-style overrides to the script's arguments.
        script_args_converter_fn: makes script arguments from a :class:`RerunStateMachinePluginScriptArgs`.
        trains: which task of a task group trains; the others start without the node script (Slurm).
        strict: what cannot work is an error instead of a warning, here and in the job.

    Raises:
        ConfigError: at construction, for a value that breaks its rule.
    """

    rerun_mode: str = VALIDATE
    check_for_nan_in_loss: bool = True
    check_for_spiky_loss: bool = False
    spiky_loss_factor: float = 10.0
    check_for_nan_in_gradients: bool = True
    spike_warmup_steps: int = 100
    spike_window: int = 100
    tolerance: float = 0.0
    accept: str = NOTHING
    determinism_interval: int = 1
    max_node_exclusions: int = MAX_NODE_EXCLUSIONS
    overrides: str | None = None
    script_args_converter_fn: Callable[[RerunStateMachinePluginScriptArgs], list[str]] | None = None
    trains: int = 0
    strict: bool = False

    def __post_init__(self) -> None:
        validate(NAME, self, RULES)
        require_module_level(f"{NAME}.script_args_converter_fn", self.script_args_converter_fn)

    def job_config(self) -> RerunStateMachineConfig:
        """What the session in the job is told."""
        names = field_names(RerunStateMachineConfig)
        return RerunStateMachineConfig(**{name: getattr(self, name) for name in names})

    def told_to_the_job(self) -> dict[str, Any]:
        """The fields of :meth:`job_config` that the job gets; the others stay open for the script's own config."""
        return {"rerun_mode": self.rerun_mode, **changed_fields(self.job_config())}

    def plan(self, task: run.Partial | run.Script, executor: Executor) -> tuple[Edit, ...]:
        arguments = tuple(argument_edits(NAME, task, self._script_arguments(task)))
        if isinstance(executor, run.SlurmExecutor):
            claims = self._claims()
            planned = on_slurm.plan(NAME, task, executor, claims=claims, trains=self.trains, strict=self.strict)
            return (*arguments, *planned)
        if isinstance(executor, run.LocalExecutor):
            return (*arguments, *self._on_local())
        rule = "is not supported; run.SlurmExecutor and run.LocalExecutor are"
        remedy = "On other systems give session() a RerunStateMachineConfig in the script."
        raise UnsupportedError("executor", type(executor).__name__, rule, remedy)

    def _claims(self) -> dict[str, Any]:
        """Fields and entries of the node launcher."""
        bound = self.max_node_exclusions
        return {
            f"config.{SECTION}": self.told_to_the_job(),
            **({"policy.max_exclusions": bound} if bound != MAX_NODE_EXCLUSIONS else {}),
        }

    def _on_local(self) -> Iterator[Edit]:
        yield from by_variables(NAME, SECTION, self.told_to_the_job(), strict=self.strict)
        yield from without_effect(NAME, self, SLURM_ONLY)
        if self.rerun_mode == VALIDATE:
            yield Note(NAME, NOWHERE_ELSE)

    def _script_arguments(self, task: run.Partial | run.Script) -> list[str]:
        fields = {name: getattr(self, name) for name in field_names(RerunStateMachinePluginScriptArgs)}
        given = given_fields(NAME, SECTION, script_arguments(task), fields)
        args = RerunStateMachinePluginScriptArgs(**fields)
        if self.script_args_converter_fn is not None:
            return list(self.script_args_converter_fn(args))
        return args.overrides(leave_out=given) if self.overrides == MEGATRON_BRIDGE else []


RULES: dict[str, Rule] = {
    **RerunStateMachineConfig.RULES,
    "max_node_exclusions": A_COUNT,
    "overrides": one_of(None, MEGATRON_BRIDGE),
    "trains": A_COUNT,
    "strict": A_SWITCH,
}
