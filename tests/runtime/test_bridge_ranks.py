"""Megatron-Bridge's own fault tolerance and signal handler under ft_launcher, with our callback in its loop."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest

from nemo_resiliency_plugins.contract import Attempt, Reason, progress_path
from tests import harness
from tests.harness import Job, ended_afterwards, wait_for
from tests.versions import megatron

STEPS, EVERY, RANKS = 20, 5, 2
WEIGHT = float(sum(2 * step + 1 for step in range(STEPS)))
"""What the ranks add up in so many steps."""


def start(root: Path, *overrides: str, steps: int = STEPS, env: dict[str, str] | None = None) -> Job:
    told = [f"checkpoint.save={root}/checkpoints", f"checkpoint.save_interval={EVERY}", f"train.train_iters={steps}"]
    own = {**harness.ENABLED, "PYTHONPATH": str(megatron.python_path(megatron.VERSIONS[0])), **(env or {})}
    overrides = ("ft.enable_ft_package=true", "train.exit_signal_handler=True", *overrides)
    return harness.start(root, "bridge_trainer.py", *told, *overrides, ranks=RANKS, restarts=1, env=own)


def signal_all(job: Job) -> None:
    """As Slurm does, also the rank monitors; a node script keeps it from the launcher alone."""
    for process in psutil.Process(job.process.pid).children(recursive=True):
        process.send_signal(signal.SIGTERM)


def test_a_signal_ends_as_a_preemption_although_the_monitors_leave(tmp_path: Path) -> None:
    job = start(tmp_path, "train.train_iters=2000")
    with ended_afterwards(job):
        wait_for(lambda: len(job.steps()) > 7, deadline_s=60, what="step 7")
        signal_all(job)
        job.succeed()
    verdict = job.verdict
    assert verdict is not None
    assert (verdict.reason, verdict.step) == (Reason.PREEMPTED, job.steps()[-1].step + 1)
    assert int(progress_path(job.nrp, Attempt(job_id=harness.JOB_ID)).read_text()) == verdict.step
    assert {event["rank"] for event in job.events("monitor_lost")} == set(range(RANKS))


@pytest.mark.slow
def test_a_killed_rank_comes_back_and_the_run_is_finished(tmp_path: Path) -> None:
    job = start(tmp_path, env={"NRP_FAULT_TOLERANCE__FAULT_SCRIPT": "kill@1:12"})
    with ended_afterwards(job):
        job.succeed()
    assert job.verdict is not None
    assert (job.verdict.reason, job.verdict.step) == (Reason.FINISHED, STEPS)
    assert float(job.result()) == WEIGHT
    assert [event["step"] for event in job.events("resumed", rank=0)] == [0, 10]
    assert [event["step"] for event in job.events("checkpoint")] == [5, 10, 15, 20]
    assert job.log.count("FT: initialized.") == 2, "Megatron-Bridge's client is the only one"
    assert not job.events("timeouts", "not_working")
