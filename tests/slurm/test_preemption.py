"""Preemption of training runs on a real Slurm cluster: nothing is lost and no retry is used up."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nemo_run as run
import pytest

from nemo_resiliency_plugins import FaultTolerancePlugin, PreemptionPlugin
from nemo_resiliency_plugins.plugins.base import ResiliencyPlugin
from tests.harness import SCRIPTS, wait_for
from tests.slurm.submitting import Submitted, preempt, submit
from tests.slurm.testbed import Cluster

STEPS = 120
BEYOND_THE_LIMIT_S = 0.5
"""Of a step, so that no training ends before its time limit is there."""
AT_NO_STEP = 1000
"""Checkpoints are written because of the preemption, or not at all."""


def fault_tolerance(**fields: Any) -> FaultTolerancePlugin:
    return FaultTolerancePlugin(**{"rank_heartbeat_timeout": 10, "warmup_steps": 2, **fields})


def train(
    cluster: Cluster,
    root: Path,
    *plugins: ResiliencyPlugin,
    script: str = "trainer.py",
    step_s: float = 0.1,
    **options: Any,
) -> Submitted:
    args = ["--steps", str(STEPS), "--every", str(AT_NO_STEP), "--step-s", str(step_s)]
    task = run.Script(str(SCRIPTS / script), entrypoint="python", args=args)
    return submit(cluster, root, task, plugins, **{"nodes": 2, "ntasks_per_node": 2, **options})


@pytest.fixture(scope="module")
def undisturbed(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The weights of a run without any fault."""
    job = train(cluster, tmp_path_factory.mktemp("undisturbed"), fault_tolerance())
    assert job.ended() == ("COMPLETED", "0:0"), job.log
    return job.result()


def slices(job: Submitted) -> list[int]:
    """The step at which each start of the ranks went on, in order."""
    return [event["step"] or 0 for event in job.events("resumed", rank=0)]


def await_steps(job: Submitted, starts: int, steps: int = 5) -> None:
    """Wait for the start of that number, and for so many steps after it."""

    def trained() -> bool:
        begun = job.events("resumed", rank=0)[starts - 1 : starts]
        return bool(begun) and sum(line.time > begun[0]["time"] for line in job.steps()) >= steps

    wait_for(trained, deadline_s=90, what=f"step {steps} of start {starts}")


def stops(job: Submitted) -> list[int]:
    """The step after which the ranks stopped, each time, all ranks alike."""
    by_attempt: dict[str, set[int]] = {}
    for event in job.events("preempted"):
        by_attempt.setdefault(event["attempt"], set()).add(event["step"])
    assert all(len(steps) == 1 for steps in by_attempt.values()), by_attempt
    return sorted(steps.pop() for steps in by_attempt.values())


def assert_told_at_the_time_limit(job: Submitted, weights: str) -> None:
    await_steps(job, 1)
    job.cluster.set_end_time(job.job_id, 34)
    wait_for(lambda: len(slices(job)) == 2, deadline_s=120, what="the next start")
    assert_unharmed(job, weights)
    [stopped] = stops(job)
    assert slices(job) == [0, stopped]


def assert_unharmed(job: Submitted, weights: str, counted: int = 0) -> None:
    assert job.ended() == ("COMPLETED", "0:0"), job.log
    assert job.result() == weights
    assert job.policy() | {"why": "finished", "attempts": counted, "failures": 0} == job.policy()
    assert not job.running()


@pytest.mark.slow
def test_preempted_three_times_with_a_crash_between(cluster: Cluster, tmp_path: Path, undisturbed: str) -> None:
    crashing = fault_tolerance(num_in_job_restarts=0, fault_script="kill@1:30")
    job = train(cluster, tmp_path, PreemptionPlugin(), crashing, partition="low")
    for starts in (1, 3, 4):
        await_steps(job, starts)
        preempt(cluster)
        wait_for(lambda count=starts: len(slices(job)) > count, deadline_s=90, what="the next start")
    assert_unharmed(job, undisturbed, counted=1)
    *ended, last = [row["State"] for row in cluster.sacct(job.job_id)]
    assert (len(ended), set(ended) <= {"REQUEUED", "PREEMPTED"}, last) == (3, True, "COMPLETED")
    stopped = stops(job)
    assert len(stopped) == 3
    assert slices(job) == [0, stopped[0], stopped[0], *stopped[1:]], "every slice goes on where the one before ended"
    assert job.attempts() == ["0-0", "1-0", "1-1", "2-0", "3-0"]


@pytest.mark.slow
def test_a_kill_is_no_preemption(cluster: Cluster, tmp_path: Path, undisturbed: str) -> None:
    job = train(cluster, tmp_path, fault_tolerance(fault_script="kill@1:8"), PreemptionPlugin())
    await_steps(job, 2)
    [launcher] = job.launchers(node=1)
    launcher.kill()
    assert job.ended() == ("COMPLETED", "0:0"), job.log
    assert job.result() == undisturbed
    assert job.attempts() == ["0-0", "0-1"]
    assert not job.events("preempted")


@pytest.mark.slow
def test_a_requeue_by_an_operator_loses_nothing(cluster: Cluster, tmp_path: Path, undisturbed: str) -> None:
    job = train(cluster, tmp_path, fault_tolerance(), PreemptionPlugin())
    await_steps(job, 1)
    cluster.requeue(job.job_id)
    assert_unharmed(job, undisturbed)
    assert slices(job) == [0, *stops(job)]
    logs = {path.name.rpartition("_")[2]: path.read_text() for path in job.directory.glob("log-*.out")}
    assert [f"attempt {job.job_id}-{name[0]}-0 on" in text for name, text in sorted(logs.items())] == [True, True]


@pytest.mark.slow
def test_ranks_that_srun_has_started_are_told(cluster: Cluster, tmp_path: Path, undisturbed: str) -> None:
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29333"}
    job = train(cluster, tmp_path, PreemptionPlugin(), script="srun_trainer.py", env=env)
    await_steps(job, 1)
    cluster.cancel(job.job_id, "--signal=TERM")
    assert_unharmed(job, undisturbed)
    assert slices(job) == [0, *stops(job)]


def test_a_cancel_saves_and_stays_a_cancel(cluster: Cluster, tmp_path: Path) -> None:
    job = train(cluster, tmp_path, fault_tolerance(), PreemptionPlugin())
    await_steps(job, 1)
    cluster.cancel(job.job_id)
    assert job.ended()[0] == "CANCELLED"
    assert len(stops(job)) == 1
    assert not job.running()
    assert len(cluster.sacct(job.job_id)) == 1


@pytest.mark.slow
def test_the_time_limit_under_torchrun(cluster: Cluster, tmp_path: Path, undisturbed: str) -> None:
    plugin = PreemptionPlugin(signal="USR2", preempt_time=5)
    job = train(cluster, tmp_path, plugin, launcher="torchrun", time="00:10:00", step_s=BEYOND_THE_LIMIT_S)
    assert_told_at_the_time_limit(job, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("scope", ["steps", "batch"])
def test_the_time_limit_under_ft_launcher(cluster: Cluster, tmp_path: Path, undisturbed: str, scope: str) -> None:
    plugin = PreemptionPlugin(preempt_time=5, scope=scope)
    job = train(cluster, tmp_path, fault_tolerance(), plugin, time="00:10:00", step_s=BEYOND_THE_LIMIT_S)
    assert_told_at_the_time_limit(job, undisturbed)


@pytest.mark.slow
def test_in_a_container(cluster: Cluster, tmp_path: Path, undisturbed: str) -> None:
    image = cluster.add_image("preempted", {})
    mounts = [f"{tmp_path}:{tmp_path}"]
    job = train(
        cluster, tmp_path, fault_tolerance(), PreemptionPlugin(), container_image=image, container_mounts=mounts
    )
    await_steps(job, 1)
    cluster.cancel(job.job_id, "--signal=TERM")
    assert_unharmed(job, undisturbed)
    assert re.fullmatch(r"\[0, \d+\]", str(slices(job)))
