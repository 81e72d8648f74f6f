"""StragglerPlugin: ranks that are slower than the others are named, and if asked for their node is left."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import nemo_run as run
from nemo_run.core.execution.base import Executor

from nemo_resiliency_plugins.config import NVRxStragglerDetectionConfig
from nemo_resiliency_plugins.plugins.edits import Edit, Note, script_arguments
from nemo_resiliency_plugins.plugins.script_args import StragglerPluginScriptArgs
from nemo_resiliency_plugins.plugins.session_plugin import EXCLUSIONS, MAX_NODE_EXCLUSIONS, SessionPlugin
from nemo_resiliency_plugins.plugins.straggler_arguments import refuse_older_detector

NOWHERE_ELSE = "stop_if_detected ends the run and excludes no node: LocalExecutor starts a job once, on one machine"


@dataclasses.dataclass(kw_only=True)
class StragglerPlugin(SessionPlugin):
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
        overrides, script_args_converter_fn, trains, strict: see :class:`SessionPlugin`.

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

    CONFIG = NVRxStragglerDetectionConfig
    SCRIPT_ARGS = StragglerPluginScriptArgs
    ALWAYS_TOLD = ("enabled",)
    POLICY_FIELDS = EXCLUSIONS
    NEEDS = {
        "max_node_exclusions": ("stop_if_detected", True),
        "gpu_relative_perf_threshold": ("calc_relative_gpu_perf", True),
        "gpu_individual_perf_threshold": ("calc_individual_gpu_perf", True),
        "num_gpu_perf_scores_to_print": ("enable_logging", True),
    }

    def notes(self, task: run.Partial | run.Script, executor: Executor) -> Iterator[Edit]:
        if self.enabled:
            refuse_older_detector(self.name, script_arguments(task))
        if self.stop_if_detected and isinstance(executor, run.LocalExecutor):
            yield Note(self.name, NOWHERE_ELSE, warn=True)
