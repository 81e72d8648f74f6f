"""The job of the recovery benchmarks on two nodes of a real Slurm cluster: ours, and batch scripts of stock parts."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import nemo_run as run

from nemo_resiliency_plugins import FaultTolerancePlugin
from tests.benchmarks.faulted import FAULT_SCRIPT, OWN_STORE, RESTARTS, SCRIPT, STEP_TIMEOUT_S, STEPS, STOCK_FLAGS
from tests.benchmarks.measured import Measured
from tests.harness import Traces, wait_for
from tests.slurm.submitting import SEVERAL_LAUNCHERS_ON_A_HOST, submit
from tests.slurm.testbed import Cluster
from tests.versions.unpacked import python_path

RANKS = 2
"""One on each node."""
CLUSTER_ROOT = Path("/tmp/nrp-bench-slurm")
PREEMPTIBLE = "low"
WITH_SPARES = "0.7.0"
"""NVRx keeps spare nodes from 0.6 on."""
STARTS = "batch-started.txt"
BATCH = """#!/bin/bash
{say_start}
{exports}
head=$(hostname --ip-address | cut -d' ' -f1)
srun --wait=60 --kill-on-bad-exit=1 {launcher} --rdzv-backend=c10d --rdzv-endpoint=$head:29511 \\
  --rdzv-id=$SLURM_JOB_ID --nnodes={nodes} --nproc-per-node=1 --max-restarts={restarts} \\
  -m nemo_resiliency_plugins.runtime.launch {script} --root {root} --steps {steps} --client {client}
code=$?
[ $code -eq 0 ] || scontrol requeue $SLURM_JOB_ID
exit $code
"""


@dataclasses.dataclass(frozen=True)
class Started(Traces):
    """A job of the cluster and what it leaves behind."""

    cluster: Cluster
    job_id: str

    def recovery(self, moment: float) -> Measured:
        """From ``moment`` until every rank has done a step of a later start; waits for it."""
        running = max(self._first_step_after(rank, moment) for rank in range(RANKS))
        batch_starts = [{"event": "batch_started", "time": at} for at in self.batch_starts()]
        return Measured.between(moment, running, [*self.events(), *batch_starts])

    def batch_starts(self) -> list[float]:
        """When the batch script started, each time."""
        return [float(line) for line in (self.root / STARTS).read_text().splitlines()]

    def _first_step_after(self, rank: int, moment: float) -> float:
        began = wait_for(
            lambda: [event["time"] for event in self.events("rank_started", rank=rank) if event["time"] > moment],
            deadline_s=180,
            what="a new start",
        )[0]
        lines = wait_for(lambda: [line for line in self.steps(rank) if line.time > began], deadline_s=90, what="a step")
        return lines[0].time


def say_start(root: Path) -> str:
    """For a batch script: when it started."""
    return f"date +%s.%N >> {root / STARTS}"


def ours(cluster: Cluster, root: Path, faults: str = "", *, restarts: int = RESTARTS, spares: int = 0) -> Started:
    plugin = FaultTolerancePlugin(
        rank_heartbeat_timeout=STEP_TIMEOUT_S,
        fault_script=faults,
        num_in_job_restarts=restarts,
        spare_nodes=spares,
    )
    task = run.Script(SCRIPT, entrypoint="python", args=["--root", str(root), "--steps", str(STEPS)])
    env = {"PYTHONPATH": python_path(WITH_SPARES)} if spares else {}
    options = {"nodes": RANKS + spares, "partition": PREEMPTIBLE, "setup_lines": say_start(root)}
    job = submit(cluster, root, task, [plugin], env=env, **options)
    return Started(root, job.nrp, cluster, job.job_id)


def stock(cluster: Cluster, root: Path, faults: str, *, restarts: int = RESTARTS) -> Started:
    return _batch(cluster, root, faults, restarts, f"ft_launcher {' '.join(STOCK_FLAGS)}", "stock")


def torchrun(cluster: Cluster, root: Path, faults: str, *, restarts: int = RESTARTS) -> Started:
    return _batch(cluster, root, faults, restarts, "torchrun", "session")


def _batch(cluster: Cluster, root: Path, faults: str, restarts: int, launcher: str, client: str) -> Started:
    nrp = root / "nrp"
    variables = {"NRP_DIR": nrp, FAULT_SCRIPT: faults, **OWN_STORE, **SEVERAL_LAUNCHERS_ON_A_HOST}
    script = BATCH.format(
        say_start=say_start(root),
        exports="\n".join(f"export {name}={value}" for name, value in variables.items()),
        root=root,
        launcher=launcher,
        client=client,
        nodes=RANKS,
        restarts=restarts,
        script=SCRIPT,
        steps=STEPS,
    )
    options = (f"--nodes={RANKS}", "--ntasks-per-node=1", f"--partition={PREEMPTIBLE}")
    return Started(root, nrp, cluster, cluster.sbatch(script, *options))
