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


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (16, Reason.RERUN_ELSEWHERE),
        pytest.param(17, Reason.VALIDATION_FAILED, marks=pytest.mark.slow),
    ],
)
def test_a_result_that_megatron_rejects_is_a_verdict_that_names_whose_it_was(
    tmp_path: Path, code: int, reason: Reason
) -> None:
    env = {"NRP_NODE_RUN": "1", "SLURMD_NODENAME": "n7"}
    job = harness.start(tmp_path, "rejecting.py", str(code), "there", ranks=RANKS, launcher=harness.torchrun, env=env)
    with ended_afterwards(job):
        job.succeed()  # so that no launcher starts the ranks again on the same device
    verdict = job.verdict
    assert verdict is not None
    assert (verdict.reason, int(verdict.code), verdict.step, verdict.rank, verdict.node) == (reason, code, 3, 1, "n7")
    [suspect] = job.events("suspect_result")
    told = {name: suspect[name] for name in ("suspect_rank", "node", "device", "step", "kind")}
    assert told == {"suspect_rank": 1, "node": "n7", "device": 0, "step": 3, "kind": "rejected nan"}
    assert len(job.events("results_stop")) == RANKS
    assert not job.events("session_failed")


@pytest.mark.slow
@pytest.mark.parametrize(("is_there", "reason"), [("there", Reason.RERUN_ELSEWHERE), ("missing", None)])
def test_without_a_node_script_the_code_of_megatron_is_that_of_the_ranks(
    tmp_path: Path, is_there: str, reason: Reason | None
) -> None:
    job = harness.start(tmp_path, "rejecting.py", "16", is_there, ranks=RANKS, launcher=harness.torchrun)
    with ended_afterwards(job):
        assert job.wait() == 1
    assert (job.verdict.reason if job.verdict else None) is reason
    failed = job.events("session_failed")
    assert failed and {event["message"] for event in failed} == {"16"}
