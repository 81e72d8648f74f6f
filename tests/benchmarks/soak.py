"""Random faults of every kind on the testbed, one after another, until a long training has finished.

``python -m tests.benchmarks.soak`` trains 4 ranks on 2 nodes for about ``--minutes``. The exit code is 0 where no fault
ended the job or held it up for good, no step was left out, and the final weights are those of an undisturbed run.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nemo_run as run
import psutil
from rich.table import Table

from nemo_resiliency_plugins import CheckpointPlugin, FaultTolerancePlugin, PreemptionPlugin
from tests.benchmarks.report import console
from tests.harness import SCRIPTS, clean_env, wait_for
from tests.slurm.submitting import Submitted, preempt, submit
from tests.slurm.testbed import Cluster

CLUSTER_ROOT = Path("/tmp/nrp-soak")
RANKS, STEP_S, EVERY = 4, 0.1, 20
QUIET_STEPS = 30
"""What the training does between a recovery and the next fault: more than the steps between two checkpoints."""
STEPS_PER_S = 2
"""That are done among so many faults, about, where the machine does nothing else."""
STUCK_S = 240.0
MANY = 1000
GOES_ON = {"RUNNING", "PENDING", "COMPLETING", "PREEMPTED"}
"""States of a job that has not ended, the last between its preemption and its requeue."""


def trained(cluster: Cluster, root: Path, steps: int, step_s: float, *plugins: Any, **options: Any) -> Submitted:
    args = ["--steps", str(steps), "--every", str(EVERY), "--step-s", str(step_s)]
    task = run.Script(str(SCRIPTS / "trainer.py"), entrypoint="python", args=args)
    return submit(cluster, root, task, plugins, nodes=2, ntasks_per_node=2, partition="low", **options)


def suite() -> list[Any]:
    fault_tolerance = FaultTolerancePlugin(
        rank_heartbeat_timeout=10,
        warmup_steps=2,
        num_in_job_restarts=MANY,
        num_job_retries_on_failure=5,
        max_job_attempts=MANY,
    )
    return [fault_tolerance, PreemptionPlugin(), CheckpointPlugin(async_save=True)]


class Faults:
    """Each method does one kind of harm to the running job."""

    def __init__(self, cluster: Cluster, job: Submitted, draw: random.Random) -> None:
        self._cluster, self._job, self._draw = cluster, job, draw

    def kill_a_rank(self) -> None:
        self._rank().kill()

    def stop_a_rank(self) -> None:
        self._rank().suspend()

    def kill_a_launcher(self) -> None:
        running = self._job.running()
        inside = {each.pid for each in running}  # monitors have the launcher's command line
        launchers = [
            each for each in running if each.ppid() not in inside and "ft_launcher" in " ".join(each.cmdline())
        ]
        self._draw.choice(launchers).kill()

    def announce_the_end(self) -> None:
        self._cluster.cancel(self._job.job_id, "--signal=TERM")

    def preempt(self) -> None:
        preempt(self._cluster)

    def requeue(self) -> None:
        self._cluster.requeue(self._job.job_id)

    def interrupt_a_rank(self) -> None:
        """An exception in the middle of whatever it does."""
        self._rank().send_signal(signal.SIGINT)

    def _rank(self) -> psutil.Process:
        by_time = sorted(self._job.events("rank_started"), key=lambda event: event["time"])
        started = {event["rank"]: event["pid"] for event in by_time}
        return psutil.Process(started[self._draw.randrange(RANKS)])


KINDS: list[Callable[[Faults], None]] = [
    Faults.kill_a_rank,
    Faults.stop_a_rank,
    Faults.kill_a_launcher,
    Faults.announce_the_end,
    Faults.preempt,
    Faults.requeue,
    Faults.interrupt_a_rank,
]


def has_ended(job: Submitted) -> bool:
    return bool(job.events("finished")) or job.cluster.state(job.job_id) not in GOES_ON


def await_progress(job: Submitted, since: float) -> float | None:
    """Seconds from ``since`` to the first step after it, when some more are done; None where the job has ended."""

    def later() -> list[float] | None:
        begun = [event["time"] for event in job.events("resumed", rank=0) if event["time"] > since]
        times = [line.time for line in job.steps() if begun and line.time > begun[0]]
        return times if len(times) > QUIET_STEPS or has_ended(job) else None

    times = wait_for(lambda: (found := later()) is not None and (found or [0.0]), deadline_s=STUCK_S, what="progress")
    return times[0] - since if times[0] else None


def disturb(cluster: Cluster, job: Submitted, seed: int, minutes: float) -> list[tuple[str, float]]:
    """Harm the job for so long, or until it ends; what was done, and the seconds until it trained again."""
    last = time.monotonic() + minutes * 60
    draw = random.Random(seed)
    faults, done = Faults(cluster, job, draw), []
    await_progress(job, 0.0)
    deck: list[Callable[[Faults], None]] = []
    while time.monotonic() < last and not has_ended(job):
        deck = deck or draw.sample(KINDS, len(KINDS))
        kind = deck.pop()
        began = time.time()
        try:
            kind(faults)
        except (psutil.NoSuchProcess, IndexError):  # the training has ended right now
            continue
        console.print(f"{len(done) + 1:3} {kind.__name__}", end=" ")
        took = await_progress(job, began)
        if took is not None:
            done.append((kind.__name__, took))
            console.print(f"trains again after {took:.1f} s")
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10_000)
    options = parser.parse_args()
    os.environ.update(clean_env({}))
    steps = int(options.minutes * 60 * STEPS_PER_S)
    root = Path(tempfile.mkdtemp(prefix="nrp-soak-"))
    console.print(f"seed {options.seed}, {steps} steps; {root} is kept unless all goes well")
    cluster = Cluster(CLUSTER_ROOT)
    cluster.start()
    try:
        good = soak(cluster, root, steps, options)
    finally:
        cluster.stop()
    if good:
        shutil.rmtree(root)
    sys.exit(not good)


def soak(cluster: Cluster, root: Path, steps: int, options: argparse.Namespace) -> bool:
    undisturbed = trained(cluster, root / "undisturbed", steps, 0.0, FaultTolerancePlugin())
    assert undisturbed.ended(600.0) == ("COMPLETED", "0:0"), undisturbed.log[-4000:]
    job = trained(cluster, root / "disturbed", steps, STEP_S, *suite())
    done = disturb(cluster, job, options.seed, options.minutes)
    end = job.ended(STUCK_S + steps * STEP_S)
    checks = {
        "ended well": end == ("COMPLETED", "0:0"),
        "no step was left out": {line.step for line in job.steps()} == set(range(steps)),
        "the weights are equal": job.result() == undisturbed.result(),
        "nothing was left running": not job.running(),
    }
    table = Table("fault", "times", "longest, s")
    for kind in sorted({kind for kind, _ in done}):
        took = [seconds for name, seconds in done if name == kind]
        table.add_row(kind, str(len(took)), f"{max(took):.1f}")
    console.print(table)
    for what, is_so in checks.items():
        console.print(f"{what}: {'yes' if is_so else 'NO'}")
    if not all(checks.values()):
        console.print(job.log[-8000:])
    return all(checks.values())


if __name__ == "__main__":
    main()
