"""The same as ``recovery``, on two nodes of a real Slurm cluster, and what a failure costs that needs a new attempt.

``stock`` is a batch script with ft_launcher and the flags of the feature document; its new attempt is
``scontrol requeue``, which on the testbed costs ``cred_expire`` = 5 s and at a usual site 120 s.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nemo_run as run

from nemo_resiliency_plugins import FaultTolerancePlugin
from tests.benchmarks.faulted import LATER, SCRIPT, SOON, STEP_TIMEOUT_S, STEPS, STOCK_FLAGS
from tests.benchmarks.report import medians, repeat, save, show
from tests.harness import Traces, clean_env, wait_for
from tests.slurm.submitting import submit
from tests.slurm.testbed import Cluster

RANKS = 2
CLUSTER_ROOT = Path("/tmp/nrp-bench-slurm")
KILL, LATE_KILL = f"kill@1:{SOON}", f"kill@1:{LATER}"
BATCH = """#!/bin/bash
export NRP_DIR={root}/nrp NRP_FAULT_TOLERANCE__FAULT_SCRIPT={fault} NVRX_ENABLE_MULTI_LAUNCHERS_PER_NODE=1
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
head=$(hostname --ip-address | cut -d' ' -f1)
srun --wait=60 --kill-on-bad-exit=1 {launcher} --rdzv-backend=c10d --rdzv-endpoint=$head:29511 \\
  --rdzv-id=$SLURM_JOB_ID --nnodes=2 --nproc-per-node=1 --max-restarts={restarts} \\
  -m nemo_resiliency_plugins.runtime.launch {script} --root {root} --steps {steps} --client {client}
code=$?
[ $code -eq 0 ] || scontrol requeue $SLURM_JOB_ID
exit $code
"""


@dataclasses.dataclass(frozen=True)
class Started:
    """A job of the cluster and what it leaves behind."""

    cluster: Cluster
    job_id: str
    traces: Traces


def ours(cluster: Cluster, root: Path, faults: str, restarts: int = 3) -> Started:
    plugin = FaultTolerancePlugin(
        rank_heartbeat_timeout=STEP_TIMEOUT_S, fault_script=faults, num_in_job_restarts=restarts
    )
    task = run.Script(SCRIPT, entrypoint="python", args=["--root", str(root), "--steps", str(STEPS)])
    submitted = submit(cluster, root, task, [plugin], nodes=2)
    return Started(cluster, submitted.job_id, submitted)


def stock(cluster: Cluster, root: Path, faults: str, restarts: int = 3) -> Started:
    return batch(cluster, root, faults, restarts, f"ft_launcher {' '.join(STOCK_FLAGS)}", "stock")


def torchrun(cluster: Cluster, root: Path, faults: str, restarts: int = 3) -> Started:
    return batch(cluster, root, faults, restarts, "torchrun", "session")


def batch(cluster: Cluster, root: Path, faults: str, restarts: int, launcher: str, client: str) -> Started:
    values = {"script": SCRIPT, "steps": STEPS, "client": client, "launcher": launcher, "restarts": restarts}
    job_id = cluster.sbatch(BATCH.format(root=root, fault=faults, **values), "--nodes=2", "--ntasks-per-node=1")
    return Started(cluster, job_id, Traces(root, root / "nrp"))


def measure(started: Started) -> float:
    """Seconds from the fault until every rank has done a step of a later start."""
    traces = started.traces
    try:
        [fault] = wait_for(lambda: traces.events("fault_injected"), deadline_s=90, what="the fault")
        after = [first_step_after(traces, rank, fault["time"]) for rank in range(RANKS)]
    finally:
        started.cluster.cancel(started.job_id)
        started.cluster.wait_for_end(started.job_id)
    return max(after) - float(fault["time"])


def first_step_after(traces: Traces, rank: int, moment: float) -> float:
    """When a process that was started after ``moment`` had done its first step."""
    began = wait_for(
        lambda: [event["time"] for event in traces.events("rank_started", rank=rank) if event["time"] > moment],
        deadline_s=180,
        what="a new start",
    )[0]
    lines = wait_for(lambda: [line for line in traces.steps(rank) if line.time > began], deadline_s=90, what="a step")
    return lines[0].time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path("build/bench.json"))
    options = parser.parse_args()
    os.environ.update(clean_env({}))
    cluster = Cluster(CLUSTER_ROOT)
    cluster.start()
    plan: dict[str, tuple[Callable[..., Started], dict[str, Any]]] = {
        "hang_slurm.ours_s": (ours, {"faults": f"hang@1:{LATER}"}),
        "hang_slurm.stock_s": (stock, {"faults": f"hang@1:{SOON}"}),
        "kill_slurm.ours_s": (ours, {"faults": LATE_KILL}),
        "kill_slurm.stock_s": (stock, {"faults": KILL}),
        "kill_slurm.torchrun_s": (torchrun, {"faults": KILL}),
        "requeue.ours_s": (ours, {"faults": KILL, "restarts": 0}),
        "requeue.stock_s": (stock, {"faults": KILL, "restarts": 0}),
    }
    try:
        found = {
            key: repeat(
                key, options.repeats, lambda root, start=variant, given=fields: measure(start(cluster, root, **given))
            )
            for key, (variant, fields) in plan.items()
        }
    finally:
        cluster.stop()
    typical = medians(found)
    ratios = {
        f"{what}.stock_over_ours": typical[f"{what}.stock_s"] / typical[f"{what}.ours_s"]
        for what in ("hang_slurm", "kill_slurm", "requeue")
    }
    show(found, {}, ratios)
    save(options.output, found, {}, ratios)


if __name__ == "__main__":
    main()
