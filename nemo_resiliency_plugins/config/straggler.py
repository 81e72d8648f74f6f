"""Straggler detection."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from nemo_resiliency_plugins.config.rules import A_COUNT, A_STEP, A_SWITCH, POSITIVE, Rule, is_number, validate

A_SHARE: Rule = (lambda value: is_number(value) and 0 <= value <= 1, "must be a number from 0 to 1", "Such as 0.7.")


@dataclasses.dataclass
class NVRxStragglerDetectionConfig:
    """Reports on how fast each rank is, and what follows when one is slow.

    The first ten fields and their defaults are those of Megatron-Bridge's class of the same name.

    Attributes:
        enabled: detect stragglers.
        report_time_interval: seconds between reports.
        calc_relative_gpu_perf: compare the ranks with each other.
        calc_individual_gpu_perf: compare each rank with its own best.
        num_gpu_perf_scores_to_print: best and worst scores that a report shows; 0 for none.
        gpu_relative_perf_threshold: a rank with a lower score is a straggler; 1 is as fast as the others.
        gpu_individual_perf_threshold: a rank with a lower score has become slow; 1 is as fast as ever.
        stop_if_detected: save, stop all ranks, and let the retry policy exclude the straggler's node.
        enable_logging: write reports to the log; warnings and events come in any case.
        profiling_interval: of so many steps one is profiled on the GPU.
        reports_to_confirm: reports in a row in which a rank is slow before it is called a straggler.
    """

    enabled: bool = False
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

    PLUGIN: ClassVar[str] = "straggler"
    RULES: ClassVar[dict[str, Rule]] = {
        "enabled": A_SWITCH,
        "report_time_interval": POSITIVE,
        "calc_relative_gpu_perf": A_SWITCH,
        "calc_individual_gpu_perf": A_SWITCH,
        "num_gpu_perf_scores_to_print": A_COUNT,
        "gpu_relative_perf_threshold": A_SHARE,
        "gpu_individual_perf_threshold": A_SHARE,
        "stop_if_detected": A_SWITCH,
        "enable_logging": A_SWITCH,
        "profiling_interval": A_STEP,
        "reports_to_confirm": A_STEP,
    }

    def __post_init__(self) -> None:
        validate(type(self).__name__, self, self.RULES)
