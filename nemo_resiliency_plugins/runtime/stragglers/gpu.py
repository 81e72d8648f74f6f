"""Scores of the GPUs, from the times of their kernels; where they cannot be had, the reason."""

from __future__ import annotations

from nemo_resiliency_plugins.compat.nvrx_stragglers import KernelTimes, KernelTimesUnavailable
from nemo_resiliency_plugins.runtime.agreement import Ranks
from nemo_resiliency_plugins.runtime.stragglers.scores import GPU_INDIVIDUAL, GPU_RELATIVE

NO_KERNELS = "no kernel was profiled"


class GpuTimes:
    """Profiles every ``profiling_interval``-th step; on no rank where one rank cannot.

    Creating it and :meth:`scores` are collectives.
    """

    def __init__(self, ranks: Ranks, node: str, *, profiling_interval: int) -> None:
        self.absent = ""
        self._every, self._steps, self._profiles = profiling_interval, 0, False
        self._kernels: KernelTimes | None = None
        try:
            self._kernels = KernelTimes(ranks.group, node)
        except KernelTimesUnavailable as error:
            self.absent = str(error)
        self.absent = ranks.first_problem(self.absent or None) or ""
        if self.absent:
            self.close()

    def step_begins(self) -> None:
        if self._kernels is not None and self._steps % self._every == 0 and not self.absent:
            try:
                self._kernels.start()
                self._profiles = True
            except KernelTimesUnavailable as error:
                self.absent = str(error)  # the others go on, and so do this rank's collectives
        self._steps += 1

    def step_ends(self) -> None:
        if self._kernels is not None and self._profiles:
            self._kernels.stop()
            self._profiles = False

    def scores(self) -> dict[str, float]:
        """This rank's scores by kind, since the last call."""
        if self._kernels is None:
            return {}
        relative, individual = self._kernels.scores()
        found = {GPU_RELATIVE: relative, GPU_INDIVIDUAL: individual}
        return {kind: score for kind, score in found.items() if score is not None}

    def close(self) -> None:
        if self._kernels is not None:
            self._kernels.close()
            self._kernels = None
