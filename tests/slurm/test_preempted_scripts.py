"""Preemption of tasks that know nothing of us, on a real Slurm cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nemo_run as run
import pytest

from nemo_resiliency_plugins import PreemptionPlugin
from tests.harness import wait_for
from tests.slurm.submitting import Submitted, preempt, submit
from tests.slurm.testbed import Cluster

SAVES = """
cd "$TEST_ROOT"
echo "start ${SLURM_RESTART_COUNT:-0}" >> starts
trap 'echo saved >> saved; exit 0' TERM USR2
for _ in $(seq 600); do [ ! -e go ] || exit 0; sleep 0.1; done
"""
DIES = """
echo "start ${SLURM_RESTART_COUNT:-0}" >> "$TEST_ROOT/starts"
for _ in $(seq 600); do [ ! -e "$TEST_ROOT/go" ] || exit 0; sleep 0.1; done
"""
IGNORES = """
trap '' TERM
echo "start ${SLURM_JOB_ID}" >> "$TEST_ROOT/starts"
for _ in $(seq 600); do [ ! -e "$TEST_ROOT/go" ] || exit 0; sleep 0.1; done
"""


def start(cluster: Cluster, root: Path, text: str, **options: Any) -> Submitted:
    plugin = options.pop("plugin", PreemptionPlugin())
    job = submit(cluster, root, run.Script(inline=text), [plugin], **options)
    await_starts(job, options.get("nodes", 1))
    return job


def starts(job: Submitted) -> list[str]:
    path = job.root / "starts"
    return path.read_text().splitlines() if path.exists() else []


def await_starts(job: Submitted, count: int) -> None:
    wait_for(lambda: len(starts(job)) >= count, deadline_s=60, what=f"{count} starts of the script")


def finish(job: Submitted) -> None:
    (job.root / "go").touch()
    assert job.ended() == ("COMPLETED", "0:0"), job.log


def test_a_script_that_saves_and_exits_0_comes_back_each_time(cluster: Cluster, tmp_path: Path) -> None:
    job = start(cluster, tmp_path, SAVES, partition="low")
    for count in (2, 3):
        preempt(cluster)
        await_starts(job, count)
    assert starts(job) == ["start 0", "start 1", "start 2"]
    assert (tmp_path / "saved").read_text().splitlines() == ["saved", "saved"]
    assert job.policy() | {"failures": 0, "attempts": 0, "idle": 2} == job.policy()
    finish(job)
    assert [row["State"] for row in cluster.sacct(job.job_id)] == ["REQUEUED", "REQUEUED", "COMPLETED"]
    assert not job.running()


@pytest.mark.slow
def test_a_script_that_dies_of_the_signal_comes_back_too(cluster: Cluster, tmp_path: Path) -> None:
    job = start(cluster, tmp_path, DIES, nodes=2)
    cluster.cancel(job.job_id, "--signal=TERM")
    await_starts(job, 4)
    assert starts(job) == ["start 0", "start 0", "start 1", "start 1"]
    finish(job)


def test_a_signal_of_the_batch_shell_reaches_the_step(cluster: Cluster, tmp_path: Path) -> None:
    plugin = PreemptionPlugin(signal="USR2", scope="batch", preempt_time=5)
    job = start(cluster, tmp_path, SAVES, plugin=plugin)
    cluster.cancel(job.job_id, "--batch", "--signal=USR2")
    await_starts(job, 2)
    assert (tmp_path / "saved").read_text().splitlines() == ["saved"]
    finish(job)


def test_a_cancelled_script_stays_cancelled(cluster: Cluster, tmp_path: Path) -> None:
    job = start(cluster, tmp_path, SAVES)
    cluster.cancel(job.job_id)
    assert job.ended()[0] == "CANCELLED"
    assert starts(job) == ["start 0"]
    assert not job.running()


@pytest.mark.slow
def test_what_slurm_does_not_bring_back_submits_itself(cluster: Cluster, tmp_path: Path) -> None:
    later = {"begin": "now+5"}
    task = run.Script(inline=IGNORES)
    job = submit(cluster, tmp_path, task, [PreemptionPlugin()], partition="cancel", additional_parameters=later)
    cluster.update(job.job_id, ExcNodeList="n1")
    await_starts(job, 1)
    preempt(cluster)
    assert job.ended()[0] == "PREEMPTED"
    await_starts(job, 2)
    follower = job.policy()["job"]
    assert cluster.job(follower)["ExcNodeList"] == "n1"
    assert starts(job) == [f"start {job.job_id}", f"start {follower}"]
    assert cluster.job(follower)["Comment"] == f"continues job {job.job_id}"
    (job.root / "go").touch()
    assert cluster.wait_for_end(follower)[-1]["State"] == "COMPLETED"
    assert f"job {follower} continues job {job.job_id}" in job.log


@pytest.mark.slow
def test_what_slurm_brings_back_by_itself_has_not_failed(cluster: Cluster, tmp_path: Path) -> None:
    job = start(cluster, tmp_path, IGNORES, partition="low")
    preempt(cluster)
    told = set()

    def is_back() -> bool:
        told.add(job.status())
        return len(starts(job)) == 2

    wait_for(is_back, deadline_s=60, what="the next start")
    assert {"RUNNING", "PENDING"} <= told
    assert "FAILED" not in told
    finish(job)
    assert job.status() == "SUCCEEDED"
    assert [row["State"] for row in cluster.sacct(job.job_id)] == ["PREEMPTED", "COMPLETED"]


def test_only_the_preempted_task_of_an_array_starts_again(cluster: Cluster, tmp_path: Path) -> None:
    text = SAVES.replace('echo "start', 'echo "$SLURM_ARRAY_TASK_ID start')
    job = start(cluster, tmp_path, text, array="0-1")
    await_starts(job, 2)
    cluster.cancel(f"{job.job_id}_1", "--signal=TERM")
    await_starts(job, 3)
    assert sorted(starts(job)) == ["0 start 0", "1 start 0", "1 start 1"]
    assert (job.policy("policy-0")["idle"], job.policy("policy-1")["idle"]) == (0, 1)
    (job.root / "go").touch()
    for number in (0, 1):
        assert cluster.wait_for_end(f"{job.job_id}_{number}")[-1]["State"] == "COMPLETED"
