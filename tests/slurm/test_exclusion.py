"""A job with a straggler goes on without its node, where there is another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nemo_run as run
import pytest

from nemo_resiliency_plugins import StragglerPlugin
from tests.harness import SCRIPTS, wait_for
from tests.slurm.submitting import Submitted, submit
from tests.slurm.testbed import Cluster

TOO_FEW = "run elsewhere, but too few nodes would be left"


def stop_on(cluster: Cluster, root: Path, *slow: str, **options: Any) -> Submitted:
    task = run.Script(str(SCRIPTS / "on_slow_nodes.py"), entrypoint="python", args=list(slow))
    return submit(cluster, root, task, [StragglerPlugin(stop_if_detected=True)], **options)


def nodes(job: Submitted) -> dict[str, list[str]]:
    """The nodes of each attempt."""
    found: dict[str, list[str]] = {}
    for line in sorted((job.root / "nodes.txt").read_text().splitlines()):
        attempt, node = line.split()
        found.setdefault(attempt, []).append(node)
    return found


def test_it_goes_on_without_the_node_though_failures_are_not_retried(cluster: Cluster, tmp_path: Path) -> None:
    job = stop_on(cluster, tmp_path, "n2", nodes=2)
    assert job.ended() == ("COMPLETED", "0:0"), job.log
    assert nodes(job) == {"0-0": ["n1", "n2"], "1-0": ["n1", "n3"]}
    [excluded] = job.events("node_excluded")
    assert (excluded["node"], excluded["attempt"]) == ("n2", f"{job.job_id}-0-0")
    assert cluster.job(job.job_id)["ExcNodeList"] == "n2"
    assert job.policy()["excluded"] == "n2"


@pytest.mark.slow
def test_nodes_that_the_user_excludes_stay_excluded(cluster: Cluster, tmp_path: Path) -> None:
    job = stop_on(cluster, tmp_path, "n1", nodes=1, additional_parameters={"exclude": "n[2]"})
    assert job.ended() == ("COMPLETED", "0:0"), job.log
    assert nodes(job) == {"0-0": ["n1"], "1-0": ["n3"]}
    assert cluster.job(job.job_id)["ExcNodeList"] == "n1,n2"


@pytest.mark.slow
def test_it_waits_for_a_node_that_another_job_has(cluster: Cluster, tmp_path: Path) -> None:
    other = cluster.sbatch("sleep 300", "--nodelist=n3", "--exclusive", "--output=/dev/null")
    cluster.wait_for_state(other, "RUNNING")
    job = stop_on(cluster, tmp_path, "n2", nodes=2)
    wait_for(lambda: job.events("node_excluded"), deadline_s=60, what="the exclusion")
    cluster.wait_for_state(job.job_id, "PENDING")
    cluster.cancel(other)
    assert job.ended() == ("COMPLETED", "0:0"), job.log
    assert nodes(job) == {"0-0": ["n1", "n2"], "1-0": ["n1", "n3"]}


def test_without_another_node_it_runs_where_it_is_and_does_not_wait_for_ever(cluster: Cluster, tmp_path: Path) -> None:
    job = stop_on(cluster, tmp_path, "n2", nodes=3, retries=1)
    assert job.ended() == ("FAILED", "1:0"), job.log
    assert list(nodes(job)) == ["0-0", "0-1"]
    assert "without n2: the job needs 3 nodes, partition main has 2" in job.log
    assert f"{TOO_FEW}: again in this allocation" in job.log
    assert job.policy() | {"why": f"{TOO_FEW}, no more left", "excluded": ""} == job.policy()
    assert not job.events("node_excluded")


def test_nodes_outside_the_jobs_reservation_are_no_other_nodes(cluster: Cluster, tmp_path: Path) -> None:
    reservation = ["ReservationName=few", "Nodes=n1,n2", "StartTime=now", "Duration=60", "Users=root"]
    cluster.run("scontrol", "create", "reservation", *reservation)
    try:
        job = stop_on(cluster, tmp_path, "n2", nodes=2, additional_parameters={"reservation": "few"})
        assert job.ended() == ("FAILED", "1:0"), job.log
    finally:
        cluster.run("scontrol", "delete", "ReservationName=few")
    assert "without n2: allocation failure: Requested node configuration is not available" in job.log
    assert job.policy()["why"] == f"{TOO_FEW}, no more left"
