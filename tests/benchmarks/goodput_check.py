"""Whether the simulation behind the goodput figures is right where it can be tried: two kills on the testbed.

The simulation is given what a kill costs by ``recovery`` (``build/bench.json``), the length of an undisturbed
step and the steps of the kills. Writes ``goodput.predicted_over_measured``; the exit code is 1 where it is off by more
than 10 %.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks import report
from tests.benchmarks.faulted import STEPS
from tests.benchmarks.goodput import Failures, Stack, simulate
from tests.benchmarks.slurm_jobs import CLUSTER_ROOT, ours
from tests.harness import StepLine, clean_env, wait_for
from tests.slurm.testbed import Cluster

KILLS = (60, 120)
MOST_OFF = 0.1


def two_kills(cluster: Cluster, root: Path) -> list[StepLine]:
    """What rank 0 has done from its first step to its last."""
    faults = ",".join(f"kill@1:{step}" for step in KILLS)
    started = ours(cluster, root, faults)
    wait_for(lambda: started.events("finished"), deadline_s=180, what="the end of the training")
    return started.steps(0)


def step_s(lines: list[StepLine]) -> float:
    """Between two steps of one start."""
    return statistics.median(
        later.time - earlier.time for earlier, later in itertools.pairwise(lines) if earlier.cycle == later.cycle
    )


def failures(step: float, recovery: float) -> Failures:
    """The kills: the first counted from the first step's end, the others from the failure before."""

    def gaps() -> Iterator[tuple[float, str]]:
        yield (KILLS[0] - 1) * step, "crash"
        for earlier, later in itertools.pairwise(KILLS):
            yield recovery + (later - earlier - 1) * step, "crash"
        yield math.inf, "crash"

    return gaps()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("build/bench.json"))
    options = parser.parse_args()
    os.environ.update(clean_env({}))
    kill_s = json.loads(options.output.read_text())["kill.ours_s"]
    cluster = Cluster(CLUSTER_ROOT)
    cluster.start()
    try:
        [lines] = report.repeat("two kills", 1, lambda root: two_kills(cluster, root))
    finally:
        cluster.stop()
    step = step_s(lines)
    recovery = kill_s - step  # a recovery ends with the first new step
    stack = Stack({"crash": recovery}, stall_s=0.0, durable_s=0.0)
    predicted = simulate((STEPS - 1) * step, failures(step, recovery), stack, step)
    ratio = predicted / (lines[-1].time - lines[0].time)
    report.console.print(f"predicted over measured: {ratio:.3f}")
    report.save(options.output, {}, {}, {"goodput.predicted_over_measured": round(ratio, 3)})
    sys.exit(abs(ratio - 1) > MOST_OFF)


if __name__ == "__main__":
    main()
