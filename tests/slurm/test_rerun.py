"""Suspect results on a cluster: the job leaves the node, ends, or takes an older checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nemo_run as run
import pytest

from nemo_resiliency_plugins import RerunStateMachinePlugin
from tests.harness import SCRIPTS
from tests.slurm.submitting import Submitted, submit
from tests.slurm.testbed import Cluster

NODES = ["n1", "n2", "n3"]


def train(cluster: Cluster, root: Path, *arguments: str, launcher: str = "torchrun", **options: Any) -> Submitted:
    task = run.Script(str(SCRIPTS / "validated.py"), entrypoint="python", args=list(arguments))
    options = {"launcher": launcher, "nodes": 2, "ntasks_per_node": 2, **options}
    return submit(cluster, root, task, [RerunStateMachinePlugin()], **options)


@pytest.fixture(scope="module")
def undisturbed(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The weights of a run in which nothing is suspect."""
    job = train(cluster, tmp_path_factory.mktemp("undisturbed"))
    assert job.ended() == ("COMPLETED", "0:0"), job.log
    assert not job.events("suspect_result")
    return job.result()


def outcomes(job: Submitted) -> list[tuple[str, str, str]]:
    cases = job.events("suspect_result", rank=0)
    return [(case["attempt"].partition("-")[2], case["outcome"], case["node"]) for case in cases]


def nodes(job: Submitted, attempt: str) -> set[str]:
    started = job.events("session_started")
    return {event["node"] for event in started if event["attempt"] == f"{job.job_id}-{attempt}"}


@pytest.mark.slow
def test_a_node_whose_results_are_bad_is_left_and_the_weights_are_the_same(
    cluster: Cluster, tmp_path: Path, undisturbed: str
) -> None:
    job = train(cluster, tmp_path, "--nan-on", "n2")
    assert job.ended() == ("COMPLETED", "0:0"), job.log
    assert job.result() == undisturbed
    assert outcomes(job) == [("0-0", "elsewhere", "n2"), ("1-0", "first_device", "n2")]
    assert (nodes(job, "0-0"), nodes(job, "1-0")) == ({"n1", "n2"}, {"n1", "n3"})
    [excluded] = job.events("node_excluded")
    assert (excluded["node"], excluded["reason"]) == ("n2", "rerun_elsewhere")
    assert [event["step"] for event in job.events("resumed", rank=0)] == [None, 6]


def test_a_result_that_is_bad_on_every_node_ends_the_job_with_17(cluster: Cluster, tmp_path: Path) -> None:
    job = train(cluster, tmp_path, "--nan-on", *NODES, retries=3)
    assert job.ended() == ("FAILED", "17:0"), job.log
    assert [outcome for _, outcome, _ in outcomes(job)] == ["elsewhere", "failed"]
    assert "ended with 0: validation failed" in job.log  # the verdict tells, no rank has to fail
    assert (nodes(job, "0-0"), nodes(job, "1-0"), nodes(job, "2-0")) == ({"n1", "n2"}, {"n2", "n3"}, set())


@pytest.mark.slow
def test_without_another_node_the_same_device_is_tried_again_and_that_is_said(cluster: Cluster, tmp_path: Path) -> None:
    job = train(cluster, tmp_path, "--nan-on", "n2", nodes=3, retries=3)
    assert job.ended() == ("FAILED", "17:0"), job.log
    assert outcomes(job) == [("0-0", "elsewhere", "n2"), ("0-1", "failed", "n2")]
    assert "run elsewhere, but too few nodes would be left: again in this allocation" in job.log
    assert "it came again after a restart, but on the same device" in job.log


@pytest.mark.slow
def test_a_checkpoint_that_makes_the_nan_is_skipped(cluster: Cluster, tmp_path: Path, undisturbed: str) -> None:
    job = train(cluster, tmp_path, "--poison", "--at", "8")  # saved after it
    assert job.ended() == ("COMPLETED", "0:0"), job.log
    assert job.result() == undisturbed
    assert [event["step"] for event in job.events("resumed", rank=0)] == [None, 6]
    assert not job.events("node_excluded")  # no device is at fault
    assert "step_000000009: NaN or Inf in module.0.weight" in job.log


@pytest.mark.slow
def test_it_is_the_same_under_ft_launcher(cluster: Cluster, tmp_path: Path, undisturbed: str) -> None:
    job = train(cluster, tmp_path, "--nan-on", "n2", launcher="ft")
    assert job.ended() == ("COMPLETED", "0:0"), job.log
    assert job.result() == undisturbed
    assert nodes(job, "1-0") == {"n1", "n3"}
