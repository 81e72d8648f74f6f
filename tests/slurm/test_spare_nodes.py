"""A spare node takes the place of a lost one without a new attempt; NVRx can keep spares from 0.6 on."""

from __future__ import annotations

from pathlib import Path

import nemo_run as run
import pytest

from nemo_resiliency_plugins import FaultTolerancePlugin
from tests.harness import SCRIPTS, wait_for
from tests.slurm.submitting import Submitted, submit
from tests.slurm.testbed import Cluster
from tests.versions.unpacked import python_path


def train(cluster: Cluster, root: Path, version: str | None) -> Submitted:
    args = ["--steps", "60", "--every", "5", "--step-s", "0.2"]
    task = run.Script(str(SCRIPTS / "trainer.py"), entrypoint="python", args=args)
    plugin = FaultTolerancePlugin(rank_heartbeat_timeout=5, warmup_steps=2, spare_nodes=1, start_skew_s=60)
    env = {"PYTHONPATH": python_path(version)} if version else {}
    return submit(cluster, root, task, [plugin], env=env, nodes=3, ntasks_per_node=2)


@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.6.0", "0.7.0"])
def test_a_lost_node_is_replaced_within_the_attempt(cluster: Cluster, tmp_path: Path, version: str) -> None:
    job = train(cluster, tmp_path, version)
    wait_for(lambda: job.events("checkpoint"), deadline_s=90, what="a checkpoint")
    working = {event["node"] for event in job.events("session_started")}
    assert len(working) == 2
    [lost] = working - {"n1"}
    cluster.lose_node(lost)
    try:
        assert job.ended(150) == ("COMPLETED", "0:0"), job.log
    finally:
        cluster.restore_node(lost)
    assert job.attempts() == ["0-0"]
    assert job.policy()["why"] == "finished"
    assert len({event["node"] for event in job.events("session_started")}) == 3


def test_a_version_that_cannot_keep_spares_says_so_and_is_not_tried_again(cluster: Cluster, tmp_path: Path) -> None:
    job = train(cluster, tmp_path, None)
    assert job.ended() == ("FAILED", "2:0"), job.log
    assert "cannot keep spare nodes" in job.log
    assert job.attempts() == []
