"""The same as ``recovery``, on two nodes of a real Slurm cluster, with what only a cluster does to a job.

``stock`` is a batch script with ft_launcher and the flags of the feature document; its new attempt is ``scontrol
requeue``, which on the testbed costs ``cred_expire`` = 5 s and at a usual site 120 s. Slurm is told of the lost node at
once: by itself it notices after ``SlurmdTimeout``, at a usual site 300 s. Ours has a spare node there.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.benchmarks.faulted import LATER, SOON, each
from tests.benchmarks.measured import Measured, Recoveries
from tests.benchmarks.report import arguments, medians, repeat, save, show
from tests.benchmarks.slurm_jobs import CLUSTER_ROOT, Started, ours, stock, torchrun
from tests.harness import wait_for
from tests.slurm.submitting import preempt
from tests.slurm.testbed import Cluster

FAULTS = ("kill_slurm", "hang_slurm", "requeue", "preemption", "lost_node")
NOTICED = (FAULTS[0], *FAULTS[2:])


def take_nodes(started: Started) -> None:
    preempt(started.cluster)


def lose_node(started: Started) -> None:
    """One that trains and is not the head."""
    latest = {event["rank"]: event["node"] for event in sorted(started.events("rank_started"), key=by_time)}
    [lost] = {*latest.values()} - {"n1"}
    started.cluster.lose_node(lost, declare=True)


def by_time(event: dict[str, float]) -> float:
    return event["time"]


@dataclasses.dataclass(frozen=True)
class Story:
    """A job that meets the scripted faults, after which each of ``harms`` is done to it, and the keys of them all."""

    stack: str
    keys: tuple[str, ...]
    start: Callable[[Cluster, Path], Started]
    harms: tuple[Callable[[Started], None], ...] = ()

    def recoveries(self, cluster: Cluster, root: Path) -> list[Measured]:
        """From each fault to the first new step."""
        started = self.start(cluster, root)
        scripted = len(self.keys) - len(self.harms)
        try:
            wait_for(
                lambda: len(started.steps()) > SOON and len(started.events("fault_injected")) == scripted,
                deadline_s=180,
                what="the scripted faults",
            )
            faults = sorted(event["time"] for event in started.events("fault_injected"))
            return [*map(started.recovery, faults), *(self._after(harm, started) for harm in self.harms)]
        finally:
            cluster.settle()

    def _after(self, harm: Callable[[Started], None], started: Started) -> Measured:
        moment = time.time()
        harm(started)
        return started.recovery(moment)


SCRIPTED = ("kill", "hang", "kill")
"""The last one finds no restart in the job left, and needs a new attempt."""
TAKEN_AND_LOST = (take_nodes, lose_node)
STORIES = [
    Story("ours", FAULTS[:4], partial(ours, faults=each(SCRIPTED, LATER), restarts=2), (take_nodes,)),
    Story("stock", FAULTS, partial(stock, faults=each(SCRIPTED, SOON), restarts=2), TAKEN_AND_LOST),
    # torchrun takes no notice of a hang.
    Story("torchrun", NOTICED, partial(torchrun, faults=each(("kill", "kill"), SOON), restarts=1), TAKEN_AND_LOST),
    Story("ours", FAULTS[4:], partial(ours, spares=1), (lose_node,)),
]


def main() -> None:
    options = arguments(__doc__)
    cluster = Cluster(CLUSTER_ROOT)
    cluster.start()
    recoveries = Recoveries()
    try:
        for story in STORIES:
            runs = repeat(story.stack, options.repeats, partial(story.recoveries, cluster))
            for key, times in zip(story.keys, zip(*runs, strict=True), strict=True):
                recoveries.add(f"{key}.{story.stack}_s", times)
    finally:
        cluster.stop()
    typical = medians(recoveries.found)
    ratios = {f"{what}.stock_over_ours": typical[f"{what}.stock_s"] / typical[f"{what}.ours_s"] for what in FAULTS}
    show(recoveries.found, recoveries.parts, ratios)
    save(options.output, recoveries.found, recoveries.parts, ratios)


if __name__ == "__main__":
    main()
