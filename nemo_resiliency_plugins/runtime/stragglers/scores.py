"""From what the ranks say of themselves to scores, and from scores to names."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Collection, Mapping, Sequence

from nemo_resiliency_plugins.config import NVRxStragglerDetectionConfig
from nemo_resiliency_plugins.runtime.stragglers.phases import PHASES

GPU_RELATIVE, GPU_INDIVIDUAL = "gpu_relative", "gpu_individual"
HOST_RELATIVE, HOST_INDIVIDUAL = "host_relative", "host_individual"
RELATIVE = (GPU_RELATIVE, HOST_RELATIVE)

Scores = dict[int, float]
"""Of each rank; 1 is as fast as the others, or as ever, and 0.5 takes twice the time."""


@dataclasses.dataclass(frozen=True)
class Said:
    """What one rank says: its scores on the GPU or why there are none, and what :class:`Window` has seen."""

    node: str
    gpu: Mapping[str, float]
    no_gpu: str
    host: Mapping[str, float] | None
    no_host: str


@dataclasses.dataclass(frozen=True)
class Straggler:
    """``scores`` are those below their threshold; ``phase`` is that in which the rank loses most on its host."""

    rank: int
    node: str
    scores: Mapping[str, float]
    phase: str | None


class Report:
    """Scores of all ranks by kind; ``absent`` has the reason for each kind that cannot be had.

    A relative score on the host is the low median over the ranks divided by the rank's own time: unlike the best of
    all, it lets one rank that has nothing to do make nobody slow.
    """

    def __init__(self, said: Sequence[Said], config: NVRxStragglerDetectionConfig) -> None:
        self.nodes = [each.node for each in said]
        self.scores: dict[str, Scores] = {}
        self.absent: dict[str, str] = {}
        self._hosts = [each.host for each in said]
        self._thresholds = {
            **dict.fromkeys(RELATIVE, config.gpu_relative_perf_threshold),
            **dict.fromkeys((GPU_INDIVIDUAL, HOST_INDIVIDUAL), config.gpu_individual_perf_threshold),
        }
        if config.calc_relative_gpu_perf:
            self._score_gpu(GPU_RELATIVE, said)
            self._score_host(HOST_RELATIVE, said)
        if config.calc_individual_gpu_perf:
            self._score_gpu(GPU_INDIVIDUAL, said)
            self._score_host(HOST_INDIVIDUAL, said)

    def slow(self) -> dict[int, Straggler]:
        """The ranks below a threshold, by rank.

        Where half of the ranks or more are, the cause is common to them: ranks of two kinds, a slow file system. Then
        none is named, unless they are all on one node of several.
        """
        below: dict[int, dict[str, float]] = {}
        for kind, scores in self.scores.items():
            slow = {rank: score for rank, score in scores.items() if score < self._thresholds[kind]}
            if self._are_few(slow):
                for rank, score in slow.items():
                    below.setdefault(rank, {})[kind] = score
        return {
            rank: Straggler(rank, self.nodes[rank], scores, self._slowest_phase(rank))
            for rank, scores in sorted(below.items())
        }

    def _are_few(self, slow: Collection[int]) -> bool:
        others = len(self.nodes) - len(slow)
        on_one_of_several = len({self.nodes[rank] for rank in slow}) == 1 < len({*self.nodes})
        return len(slow) < others or (len(slow) == others and on_one_of_several) or (len(slow) == 1 and others <= 1)

    def _score_gpu(self, kind: str, said: Sequence[Said]) -> None:
        reason = next((each.no_gpu for each in said if kind not in each.gpu), "")
        self._keep(kind, reason, {rank: each.gpu[kind] for rank, each in enumerate(said) if kind in each.gpu})

    def _score_host(self, kind: str, said: Sequence[Said]) -> None:
        hosts = {rank: each.host for rank, each in enumerate(said) if each.host is not None}
        reason = next((each.no_host for each in said if each.host is None), "")
        usual = statistics.median_low(host["total"] for host in hosts.values()) if hosts else 0.0
        scores = {
            rank: _ratio(usual if kind == HOST_RELATIVE else host["best"], host["total"])
            for rank, host in hosts.items()
        }
        self._keep(kind, reason, scores)

    def _keep(self, kind: str, reason: str, scores: Scores) -> None:
        if reason:
            self.absent[kind] = reason
        elif kind in RELATIVE and len(self.nodes) == 1:
            self.absent[kind] = "there is one rank only"
        else:
            self.scores[kind] = scores

    def _slowest_phase(self, rank: int) -> str | None:
        host = self._hosts[rank]
        others = [each for each in self._hosts if each is not None]
        if host is None:
            return None
        lost = {phase: host[phase] - statistics.median_low(each[phase] for each in others) for phase in PHASES}
        phase = max(PHASES, key=lambda each: lost[each])
        return phase if lost[phase] > 0 else None


def _ratio(reference: float, own: float) -> float:
    return 1.0 if own <= reference else reference / own


class Confirmation:
    """Calls a rank a straggler when it was slow in so many reports in a row."""

    def __init__(self, reports: int) -> None:
        self._needed = reports
        self._in_a_row: dict[int, int] = {}

    def confirmed(self, slow: Mapping[int, Straggler]) -> list[Straggler]:
        self._in_a_row = {rank: self._in_a_row.get(rank, 0) + 1 for rank in slow}
        return [each for rank, each in slow.items() if self._in_a_row[rank] >= self._needed]
