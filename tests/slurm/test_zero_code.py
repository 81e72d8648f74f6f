"""A training script without a line of ours, on a real Slurm cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nemo_run as run
import pytest

from nemo_resiliency_plugins import FaultTolerancePlugin, PreemptionPlugin
from tests.harness import SCRIPTS, wait_for
from tests.slurm.submitting import Submitted, preempt, submit
from tests.slurm.testbed import Cluster

pytestmark = pytest.mark.slow


def train(cluster: Cluster, root: Path, *arguments: str, fault_script: str = "", **options: Any) -> Submitted:
    """On two nodes with a rank each."""
    task = run.Script(str(SCRIPTS / "unchanged.py"), entrypoint="python", args=list(arguments))
    watched = FaultTolerancePlugin(zero_code=True, rank_heartbeat_timeout=5, warmup_steps=2, fault_script=fault_script)
    return submit(cluster, root, task, [watched, PreemptionPlugin()], nodes=2, ntasks_per_node=1, **options)


def test_a_kill_and_a_hang_are_survived_and_the_end_is_known(cluster: Cluster, tmp_path: Path) -> None:
    weights = []
    for name, faults in (("undisturbed", ""), ("faults", "kill@1:7,hang@0:8")):
        job = train(cluster, tmp_path / name, fault_script=faults)
        assert job.ended() == ("COMPLETED", "0:0"), job.log
        assert job.policy()["why"] == "finished"
        weights.append(job.result())
    assert {event["kind"] for event in job.events("fault_injected")} == {"kill", "hang"}
    assert job.attempts() == ["0-0"]
    assert weights[0] == weights[1]


def test_a_script_that_saves_at_the_signal_is_brought_back_and_finishes(cluster: Cluster, tmp_path: Path) -> None:
    job = train(cluster, tmp_path, "--steps", "60", "--step-s", "0.2", "--handler", partition="low")
    wait_for(lambda: len(job.steps()) > 3, deadline_s=90, what="steps")
    preempt(cluster)
    wait_for(lambda: "1-0" in job.attempts(), deadline_s=90, what="the next attempt")
    assert job.ended() == ("COMPLETED", "0:0"), job.log
    assert job.events("preemption_notice")
    assert job.policy() | {"why": "finished", "failures": 0} == job.policy()
    steps = [line.step for line in job.steps()]
    assert steps == list(range(60))
