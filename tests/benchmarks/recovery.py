"""How long after a fault the training runs again, on two nodes of a real Slurm cluster: ours, stock parts, torchrun.

``stock`` is a batch script with ft_launcher and the flags of the feature document; its new attempt is ``scontrol
requeue``, which on the testbed costs ``cred_expire`` = 5 s and at a usual site 120 s. Slurm is told of the lost node at
once: by itself it notices after ``SlurmdTimeout``, at a usual site 300 s. Ours has a spare node there. The floor is the
first start of each job. Writes ``build/bench.json``.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from tests.benchmarks.faulted import LATER, SOON
from tests.benchmarks.measured import Measured, Recoveries
from tests.benchmarks.report import arguments, medians, repeat, save, show
from tests.benchmarks.slurm_jobs import CLUSTER_ROOT, Started, ours, stock, torchrun
from tests.harness import wait_for
from tests.slurm.submitting import preempt
from tests.slurm.testbed import Cluster

FAULTS = ("kill", "exception", "requeue", "hang", "preemption", "lost_node")
SCRIPTED = {"kill": "kill", "exception": "exception", "requeue": "kill", "hang": "hang"}
"""By key the fault of the script; the third one finds its node without a restart left."""
RESTARTS = 2
NEW_ATTEMPT = {"requeue", "preemption"}
COLD_START = "cold_start"


def take_nodes(started: Started) -> None:
    preempt(started.cluster)


def lose_node(started: Started) -> None:
    """One that trains and is not the head."""
    latest = {event["rank"]: event["node"] for event in sorted(started.events("rank_started"), key=by_time)}
    [lost] = {*latest.values()} - {"n1"}
    started.cluster.lose_node(lost, declare=True)


def by_time(event: dict[str, float]) -> float:
    return event["time"]


Harm = Callable[[Started], None]
HARMS: dict[str, Harm] = {"preemption": take_nodes, "lost_node": lose_node}


@dataclasses.dataclass(frozen=True)
class Story:
    """A job that meets its scripted faults, and then is done harm to."""

    stack: str
    start: Callable[[Cluster, Path], Started]
    faults: Sequence[str]

    @property
    def scripted(self) -> list[str]:
        return [fault for fault in self.faults if fault in SCRIPTED]

    @property
    def keys(self) -> list[str]:
        """Where nothing is scripted the first start is no matter of the story."""
        return [COLD_START, *self.faults] if self.scripted else [*self.faults]

    def recoveries(self, cluster: Cluster, root: Path) -> list[Measured]:
        """From the start of the job, and from each fault, to the first new step."""
        started = self.start(cluster, root)
        try:
            wait_for(
                lambda: len(started.steps()) > SOON and len(started.events("fault_injected")) == len(self.scripted),
                deadline_s=240,
                what="the scripted faults",
            )
            faults = sorted(event["time"] for event in started.events("fault_injected"))
            moments = [started.batch_starts()[0], *faults] if faults else []
            found = [*map(started.recovery, moments)]
            for harm in self.faults[len(self.scripted) :]:
                moment = time.time()
                HARMS[harm](started)
                found.append(started.recovery(moment))
        finally:
            cluster.settle()
        for key, measured in zip(self.keys, found, strict=True):
            assert key not in NEW_ATTEMPT or "batch script" in measured.parts, f"{key}: the attempt has gone on"
        return found


def scripted(faults: Sequence[str], steps: int) -> str:
    """``steps`` before each fault, and few before that after which no rank could wait."""
    kinds = [SCRIPTED[fault] for fault in faults if fault in SCRIPTED]
    places = itertools.accumulate(SOON if fault == "requeue" else steps for fault in faults if fault in SCRIPTED)
    return ",".join(f"{kind}@1:{step}" for kind, step in zip(kinds, places, strict=True))


WITHOUT_HANG = [fault for fault in FAULTS if fault != "hang"]
"""torchrun takes no notice of one."""
STORIES = (
    Story("ours", partial(ours, faults=scripted(FAULTS, LATER), restarts=RESTARTS), FAULTS[:-1]),
    Story("stock", partial(stock, faults=scripted(FAULTS, SOON), restarts=RESTARTS), FAULTS),
    Story("torchrun", partial(torchrun, faults=scripted(WITHOUT_HANG, SOON), restarts=RESTARTS), WITHOUT_HANG),
    Story("ours", partial(ours, spares=1), FAULTS[-1:]),
)


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
