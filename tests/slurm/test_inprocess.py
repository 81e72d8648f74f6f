"""InProcessRestartPlugin on a real Slurm cluster, submitted through NeMo-Run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nemo_run as run
import pytest

from nemo_resiliency_plugins import InProcessRestartPlugin, PreemptionPlugin
from nemo_resiliency_plugins.contract import variable
from tests.harness import SCRIPTS, wait_for
from tests.slurm.submitting import Submitted, preempt, submit
from tests.slurm.testbed import Cluster

QUICK = {
    "monitor_thread_interval": 0.2,
    "monitor_process_interval": 0.2,
    "last_call_wait": 0.2,
    "heartbeat_interval": 2.0,
}


def trainer(steps: int = 30, step_s: float = 0.1) -> run.Script:
    arguments = ["--steps", str(steps), "--every", "5", "--step-s", str(step_s)]
    return run.Script(str(SCRIPTS / "inprocess_trainer.py"), entrypoint="python", args=arguments)


def train(
    cluster: Cluster, root: Path, faults: str = "", task: run.Script | None = None, nodes: int = 2, **fields: Any
) -> Submitted:
    env = {variable("fault_tolerance", "fault_script"): faults, "NRP_ALLOW_LOOPBACK": "1"}
    plugin = InProcessRestartPlugin(**{**QUICK, **fields})
    return submit(cluster, root, task or trainer(), [plugin], env=env, nodes=nodes, ntasks_per_node=2)


def lives(job: Submitted) -> list[tuple[int, int | None]]:
    """By life and first rank: the rank that trains."""
    began = job.events("life_began")
    return [(event["iteration"], event["active_rank"]) for event in sorted(began, key=lambda event: event["time"])]


@pytest.mark.slow
def test_an_exception_is_survived_by_all_processes(cluster: Cluster, tmp_path: Path) -> None:
    job = train(cluster, tmp_path / "job", "exception@2:12")
    undisturbed = train(cluster, tmp_path / "undisturbed")
    assert job.ended() == ("COMPLETED", "0:0"), job.log
    assert undisturbed.ended() == ("COMPLETED", "0:0"), undisturbed.log
    assert job.result() == undisturbed.result()
    assert sorted(lives(job)) == [(life, rank) for life in (0, 1) for rank in range(4)]
    assert len(job.events("rank_started")) == 4
    assert job.attempts() == ["0-0"]
    assert job.policy()["why"] == "finished"


def test_a_killed_rank_is_replaced_with_its_node_and_that_of_rank_0_too(cluster: Cluster, tmp_path: Path) -> None:
    job = train(cluster, tmp_path, "kill@1:12", active_world_size=2)
    assert job.ended() == ("COMPLETED", "0:0"), job.log
    assert {rank for life, rank in lives(job) if life == 0} == {0, 1, None}
    assert {rank for life, rank in lives(job) if life == 1} == {0, 1}
    assert [event["rank"] for event in job.events("inprocess_discarded")] == [0]
    assert [event["step"] for event in job.events("resumed", rank=0)] == [None, 10]
    assert job.attempts() == ["0-0"]
    assert job.policy()["why"] == "finished"
    assert not job.running()


@pytest.mark.slow
def test_a_single_spare_replaces_a_single_rank(cluster: Cluster, tmp_path: Path) -> None:
    job = train(cluster, tmp_path, "kill@2:12", active_world_size=3, granularity="rank")
    assert job.ended() == ("COMPLETED", "0:0"), job.log
    assert job.attempts() == ["0-0"]
    assert not job.events("inprocess_discarded")


@pytest.mark.slow
def test_a_lost_rank_without_a_spare_is_left_to_the_policy(cluster: Cluster, tmp_path: Path) -> None:
    env = {variable("fault_tolerance", "fault_script"): "kill@1:12", "NRP_ALLOW_LOOPBACK": "1"}
    plugin = InProcessRestartPlugin(**QUICK)  # type: ignore[arg-type]
    job = submit(cluster, tmp_path, trainer(), [plugin], env=env, nodes=2, ntasks_per_node=2, retries=1)
    assert job.ended(240.0) == ("COMPLETED", "0:0"), job.log
    assert job.attempts() == ["0-0", "0-1"]
    assert [event["step"] for event in job.events("resumed", rank=0)] == [None, 10]


@pytest.mark.slow
def test_a_preempted_job_saves_in_the_life_after_a_fault_and_goes_on(cluster: Cluster, tmp_path: Path) -> None:
    env = {variable("fault_tolerance", "fault_script"): "exception@0:8", "NRP_ALLOW_LOOPBACK": "1"}
    plugins = [InProcessRestartPlugin(**QUICK, active_world_size=2), PreemptionPlugin()]  # type: ignore[arg-type]
    job = submit(
        cluster,
        tmp_path,
        trainer(120, 0.2),
        plugins,
        env=env,
        nodes=2,
        ntasks_per_node=2,
        partition="low",
        time="10:00",
    )
    wait_for(lambda: len(job.steps(0)) > 30, deadline_s=90.0, what=job.log)
    preempt(cluster)
    assert job.ended(300.0) == ("COMPLETED", "0:0"), job.log
    assert len(job.events("preempted", rank=0)) == 1
    assert job.attempts() == ["0-0", "1-0"]
    assert job.policy()["failures"] == 0
