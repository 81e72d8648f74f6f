"""The same as ``recovery``, on two nodes of a real Slurm cluster, with what only a cluster does to a job.

``stock`` is a batch script with ft_launcher and the flags of the feature document; its new attempt is ``scontrol
requeue``, which on the testbed costs ``cred_expire`` = 5 s and at a usual site 120 s. Slurm is told of the lost node at
once: by itself it notices after ``SlurmdTimeout``, at a usual site 300 s. Ours has a spare node there.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.benchmarks.faulted import LATER, SOON, each
from tests.benchmarks.report import medians, repeat, save, show
from tests.benchmarks.slurm_jobs import CLUSTER_ROOT, Started, ours, stock, torchrun
from tests.harness import clean_env, wait_for
from tests.slurm.submitting import preempt
from tests.slurm.testbed import Cluster

FAULTS = ("kill_slurm", "hang_slurm", "requeue", "preemption", "lost_node")


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

    def recoveries_s(self, cluster: Cluster, root: Path) -> list[float]:
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
            return [*map(started.recovery_s, faults), *(self._after(harm, started) for harm in self.harms)]
        finally:
            cluster.settle()

    def _after(self, harm: Callable[[Started], None], started: Started) -> float:
        moment = time.time()
        harm(started)
        return started.recovery_s(moment)


LATE, EARLY = each(("kill", "hang"), LATER), each(("kill", "hang"), SOON)
KILL = each(("kill",), SOON)
STORIES = [
    Story("ours", FAULTS[:2], partial(ours, faults=LATE)),
    Story("stock", FAULTS[:2], partial(stock, faults=EARLY)),
    Story("torchrun", FAULTS[:1], partial(torchrun, faults=KILL)),
    Story("ours", FAULTS[2:4], partial(ours, faults=KILL, restarts=0), (take_nodes,)),
    Story("stock", FAULTS[2:], partial(stock, faults=KILL, restarts=0), (take_nodes, lose_node)),
    Story("ours", FAULTS[4:], partial(ours, spares=1), (lose_node,)),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path("build/bench.json"))
    options = parser.parse_args()
    os.environ.update(clean_env({}))
    cluster = Cluster(CLUSTER_ROOT)
    cluster.start()
    found: dict[str, list[float]] = {}
    try:
        for story in STORIES:
            runs = repeat(story.stack, options.repeats, partial(story.recoveries_s, cluster))
            for place, key in enumerate(story.keys):
                found[f"{key}.{story.stack}_s"] = [times[place] for times in runs]
    finally:
        cluster.stop()
    typical = medians(found)
    ratios = {f"{what}.stock_over_ours": typical[f"{what}.stock_s"] / typical[f"{what}.ours_s"] for what in FAULTS}
    show(found, {}, ratios)
    save(options.output, found, {}, ratios)


if __name__ == "__main__":
    main()
