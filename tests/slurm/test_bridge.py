"""Megatron-Bridge's parts on a real Slurm cluster, with the drop-in plugins and the callback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nemo_run as run
import pytest

from nemo_resiliency_plugins.megatron_bridge import FaultTolerancePlugin, PreemptionPlugin
from tests.harness import SCRIPTS, wait_for
from tests.slurm.submitting import Submitted, submit
from tests.slurm.testbed import Cluster
from tests.versions import megatron

EVERY = 10


def train(cluster: Cluster, root: Path, *overrides: str, steps: int, **fields: Any) -> Submitted:
    args = [f"checkpoint.save={root}/checkpoints", f"checkpoint.save_interval={EVERY}", f"train.train_iters={steps}"]
    task = run.Script(str(SCRIPTS / "bridge_trainer.py"), entrypoint="python", args=[*args, *overrides])
    plugins = [FaultTolerancePlugin(calc_ft_timeouts=False, num_in_job_restarts=0, **fields), PreemptionPlugin()]
    env = {"PYTHONPATH": str(megatron.python_path(megatron.VERSIONS[0]))}
    return submit(cluster, root, task, plugins, env=env, nodes=2, ntasks_per_node=1)


def resumed(job: Submitted) -> list[int]:
    return [event["step"] for event in job.events("resumed", rank=0)]


@pytest.mark.slow
def test_preempted_and_killed_it_finishes_and_is_not_requeued(cluster: Cluster, tmp_path: Path) -> None:
    """No failure is allowed but after progress, and that is what the tracker file says."""
    job = train(cluster, tmp_path, steps=70, fault_script="kill@1:55", num_job_retries_on_failure=0)
    wait_for(lambda: len(job.steps()) > 15, deadline_s=90, what="step 15")
    cluster.cancel(job.job_id, "--signal=TERM")
    assert job.ended(200) == ("COMPLETED", "0:0"), job.log
    [stopped] = {event["step"] for event in job.events("preempted")}
    assert resumed(job) == [0, stopped, 50]
    assert [row["State"] for row in cluster.sacct(job.job_id)] == ["REQUEUED", "COMPLETED"]
    assert job.policy() | {"why": "finished", "attempts": 1} == job.policy()
    assert float(job.result()) == float(sum(2 * step + 1 for step in range(70)))
    assert not job.running()
