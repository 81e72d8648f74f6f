"""StragglerPlugin: ranks that are slower than the others are named, and if asked for their node is left."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import nemo_run as run
from nemo_run.core.execution.base import Executor

from nemo_resiliency_plugins.config import NVRxStragglerDetectionConfig
from nemo_resiliency_plugins.config.rules import A_COUNT, A_SWITCH, Rule, changed_fields, field_names, one_of, validate
from nemo_resiliency_plugins.errors import UnsupportedError
from nemo_resiliency_plugins.plugins import on_slurm
from nemo_resiliency_plugins.plugins.base import ResiliencyPlugin
from nemo_resiliency_plugins.plugins.edits import Edit, Note, script_arguments
from nemo_resiliency_plugins.plugins.given_arguments import given_fields
from nemo_resiliency_plugins.plugins.script_args import (
    MEGATRON_BRIDGE,
    StragglerPluginScriptArgs,
    argument_edits,
    require_module_level,
)
from nemo_resiliency_plugins.plugins.straggler_arguments import SECTION, refuse_older_detector
from nemo_resiliency_plugins.plugins.telling import by_variables, without_effect

NAME = "StragglerPlugin"
SLURM_ONLY = ("max_node_exclusions", "trains")
MAX_NODE_EXCLUSIONS = 3
NOWHERE_ELSE = "stop_if_detected ends the run and excludes no node: LocalExecutor starts a job once, on one machine"


@dataclasses.dataclass(kw_only=True)
class StragglerPlugin(ResiliencyPlugin):
    """Report how fast each rank is, and with ``stop_if_detected`` go on without the node of a slow one.

    The first ten parameters are those of Megatron-Bridge's ``NVRxStragglerDetectionConfig``, with its defaults except
    for ``enabled``: who adds the plugin wants it.

    Attributes:
        enabled: detect stragglers.
        report_time_interval: seconds between reports.
        calc_relative_gpu_perf: compare the ranks with each other.
        calc_individual_gpu_perf: compare each rank with its own best.
        num_gpu_perf_scores_to_print: best and worst scores that a report shows; 0 for none.
        gpu_relative_perf_threshold: a rank with a lower score is a straggler; 1 is as fast as the others.
        gpu_individual_perf_threshold: a rank with a lower score has become slow; 1 is as fast as ever.
        stop_if_detected: save, stop all ranks, and start the job again without the straggler's node (Slurm).
        enable_logging: write reports to the log; warnings and events come in any case.
        profiling_interval: of so many steps one is profiled on the GPU.
        reports_to_confirm: reports in a row in which a rank is slow before it is called a straggler.
        max_node_exclusions: nodes that a job leaves; after that it runs again where it is (Slurm).
        overrides: ``"megatron_bridge"`` adds hydra-style overrides to the script's arguments.
        script_args_converter_fn: makes script arguments from a :class:`StragglerPluginScriptArgs`.
        trains: which task of a task group trains; the others start without the node script (Slurm).
        strict: what cannot work is an error instead of a warning, here and in the job.

    Raises:
        ConfigError: at construction, for a value that breaks its rule.
    """

    enabled: bool = True
    report_time_interval: float = 300.0
    calc_relative_gpu_perf: bool = True
    calc_individual_gpu_perf: bool = True
    num_gpu_perf_scores_to_print: int = 5
    gpu_relative_perf_threshold: float = 0.7
    gpu_individual_perf_threshold: float = 0.7
    stop_if_detected: bool = False
    enable_logging: bool = True
    profiling_interval: int = 1
    reports_to_confirm: int = 1
    max_node_exclusions: int = MAX_NODE_EXCLUSIONS
    overrides: str | None = None
    script_args_converter_fn: Callable[[StragglerPluginScriptArgs], list[str]] | None = None
    trains: int = 0
    strict: bool = False

    def __post_init__(self) -> None:
        validate(NAME, self, RULES)
        require_module_level(f"{NAME}.script_args_converter_fn", self.script_args_converter_fn)

    def job_config(self) -> NVRxStragglerDetectionConfig:
        """What the session in the job is told."""
        names = field_names(NVRxStragglerDetectionConfig)
        return NVRxStragglerDetectionConfig(**{name: getattr(self, name) for name in names})

    def told_to_the_job(self) -> dict[str, Any]:
        """The fields of :meth:`job_config` that the job gets; the others stay open for the script's own config."""
        return {"enabled": self.enabled, **changed_fields(self.job_config())}

    def plan(self, task: run.Partial | run.Script, executor: Executor) -> tuple[Edit, ...]:
        if self.enabled:
            refuse_older_detector(NAME, script_arguments(task))
        arguments = tuple(argument_edits(NAME, task, self._script_arguments(task)))
        if isinstance(executor, run.SlurmExecutor):
            claims = self._claims()
            planned = on_slurm.plan(NAME, task, executor, claims=claims, trains=self.trains, strict=self.strict)
            return (*arguments, *planned)
        if isinstance(executor, run.LocalExecutor):
            return (*arguments, *self._on_local())
        rule = "is not supported; run.SlurmExecutor and run.LocalExecutor are"
        remedy = "On other systems give session() an NVRxStragglerDetectionConfig in the script."
        raise UnsupportedError("executor", type(executor).__name__, rule, remedy)

    def _claims(self) -> dict[str, Any]:
        """Fields and entries of the node launcher."""
        bound = self.max_node_exclusions
        return {
            f"config.{NVRxStragglerDetectionConfig.PLUGIN}": self.told_to_the_job(),
            **({"policy.max_exclusions": bound} if bound != MAX_NODE_EXCLUSIONS else {}),
        }

    def _on_local(self) -> Iterator[Edit]:
        told = self.told_to_the_job()
        yield from by_variables(NAME, NVRxStragglerDetectionConfig.PLUGIN, told, strict=self.strict)
        yield from without_effect(NAME, self, SLURM_ONLY)
        if self.stop_if_detected:
            yield Note(NAME, NOWHERE_ELSE, warn=True)

    def _script_arguments(self, task: run.Partial | run.Script) -> list[str]:
        fields = {name: getattr(self, name) for name in field_names(StragglerPluginScriptArgs)}
        given = given_fields(NAME, SECTION, script_arguments(task), fields)
        args = StragglerPluginScriptArgs(**fields)
        if self.script_args_converter_fn is not None:
            return list(self.script_args_converter_fn(args))
        return args.overrides(leave_out=given) if self.overrides == MEGATRON_BRIDGE else []


RULES: dict[str, Rule] = {
    **NVRxStragglerDetectionConfig.RULES,
    "max_node_exclusions": A_COUNT,
    "overrides": one_of(None, MEGATRON_BRIDGE),
    "trains": A_COUNT,
    "strict": A_SWITCH,
}
