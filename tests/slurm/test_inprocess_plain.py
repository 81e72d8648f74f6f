"""In-process restart on a real Slurm cluster without NeMo-Run, of a function that is submitted by submitit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_resiliency_plugins.contract import Attempt, Verdict, variable
from tests.harness import SCRIPTS, Traces
from tests.slurm.test_inprocess import QUICK, lives
from tests.slurm.testbed import Cluster

ARGUMENTS = ["--steps", "30", "--every", "5", "--step-s", "0.1"]
SPARE = {**QUICK, "active_world_size": 2, "granularity": "rank"}


def variables(root: Path, faults: str) -> dict[str, str]:
    own = {"TEST_ROOT": str(root), variable("fault_tolerance", "fault_script"): faults, "NRP_ALLOW_LOOPBACK": "1"}
    return {**own, "MASTER_ADDR": "127.0.0.1"}  # the nodes' names resolve to nothing here


def check(cluster: Cluster, root: Path, job_id: str) -> None:
    """The job has lost rank 1 and finished, without a requeue."""
    rows = cluster.wait_for_end(job_id, 180.0)
    traces = Traces(root, root / "nrp" / job_id)
    assert {rank for life, rank in lives(traces) if life == 0} == {0, 1, None}  # type: ignore[arg-type]
    assert {rank for life, rank in lives(traces) if life == 1} == {0, 1, None}  # type: ignore[arg-type]
    assert [event["step"] for event in traces.events("resumed", rank=0)] == [None, 10]
    verdict = Verdict.read(traces.nrp, Attempt(job_id=job_id))
    assert verdict is not None
    assert (verdict.reason.value, verdict.step) == ("finished", 30)
    assert len(rows) == 1


@pytest.mark.slow
def test_a_lost_rank_is_replaced_under_submitit(cluster: Cluster, tmp_path: Path) -> None:
    fields = json.dumps({"enabled": True, **SPARE})
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "submitit_trainer.py"), fields, *ARGUMENTS],
        env={**os.environ, **cluster.env, **variables(tmp_path, "kill@1:12")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    check(cluster, tmp_path, done.stdout.split()[-1])
