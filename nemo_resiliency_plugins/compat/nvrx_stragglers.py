"""NVRx's view of the GPU's kernels, whichever version is installed."""

from __future__ import annotations

import importlib
import math
from typing import Any

from nemo_resiliency_plugins.compat.nvrx import check_version, installed_version
from nemo_resiliency_plugins.errors import UnsupportedError

HOMES = ("nvidia_resiliency_ext.attribution.straggler", "nvidia_resiliency_ext.straggler")
"""0.5.0 moved the module; neither name is an alias of the other."""
SAMPLES_PER_KERNEL = 8 * 1024


class KernelTimesUnavailable(Exception):
    """Why there are none, in words."""


class KernelTimes:
    """NVRx's profiler of kernels (CUPTI) and its scores, without the ``Detector`` around them.

    The ``Detector`` (0.4.1 to 0.7.0) can exist once in a process, looks through the caller's stack at every step, and
    synchronises the GPU before a report.

    Args:
        group: a gloo group over all ranks; NVRx would otherwise send scores through the GPU.
        node: the name of this rank's node.

    Raises:
        KernelTimesUnavailable: there is no GPU, or no NVRx, or somebody else profiles.
    """

    def __init__(self, group: Any, node: str) -> None:
        import torch

        if not torch.cuda.is_available():
            raise KernelTimesUnavailable("there is no GPU")
        try:
            check_version(installed_version())
            place = home()
            self._profiler = importlib.import_module(f"{place}.cupti").CuptiManager(
                statsMaxLenPerKernel=SAMPLES_PER_KERNEL
            )
            self._profiler.initialize()
        except (UnsupportedError, ImportError, RuntimeError) as error:
            raise KernelTimesUnavailable(f"kernels cannot be profiled: {error}") from error
        reporting = importlib.import_module(f"{place}.reporting")
        kinds = ["relative_perf_scores", "individual_perf_scores"]
        self._reports = reporting.ReportGenerator(kinds, gather_on_rank0=False, pg=group, node_name=node)
        self._statistic = importlib.import_module(f"{place}.statistics").Statistic

    def start(self) -> None:
        """Raises KernelTimesUnavailable, say where somebody else has begun to profile."""
        try:
            self._profiler.start_profiling()
        except RuntimeError as error:
            raise KernelTimesUnavailable(f"kernels are profiled no more: {error}") from error

    def stop(self) -> None:
        self._profiler.stop_profiling()

    def scores(self) -> tuple[float | None, float | None]:
        """Collective. This rank's relative and individual score since the last call; None where there is none."""
        report = self._reports.generate_report({}, self._summaries())
        self._profiler.reset_results()
        rank = self._reports.rank
        return _finite(report.gpu_relative_perf_scores.get(rank)), _finite(report.gpu_individual_perf_scores.get(rank))

    def close(self) -> None:
        self._profiler.shutdown()

    def _summaries(self) -> dict[str, dict[Any, float]]:
        kind = self._statistic
        return {
            name: {kind.MED: times.median, kind.AVG: times.avg, kind.NUM: times.num_calls}
            for name, times in self._profiler.get_results().items()
        }


def home() -> str:
    """The name of the module that this version of NVRx has its detector in."""
    for name in HOMES:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not name.startswith(str(error.name)):
                raise
        else:
            return name
    raise UnsupportedError("nvidia-resiliency-ext", installed_version(), "has no straggler detection", "Install 0.7.")


def _finite(score: float | None) -> float | None:
    return None if score is None or math.isnan(score) else float(score)
