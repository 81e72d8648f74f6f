"""A training script without a line of ours, started through the stub by real launchers."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path

import pytest

from nemo_resiliency_plugins.contract import Reason
from tests.harness import Job, Timeouts, ended_afterwards, ft_launcher, run, spawn, start, torchrun, wait_for
from tests.runtime.conftest import Jobs

ZERO_CODE = {"NRP_FAULT_TOLERANCE__ZERO_CODE": "true", "NRP_FAULT_TOLERANCE__WARMUP_STEPS": "2"}
HANDLED = {**ZERO_CODE, "NRP_PREEMPTION__EXIT_SIGNAL_HANDLER": "true"}
SHORT = Timeouts(step=3.0)


def faulty(script: str) -> dict[str, str]:
    return {**ZERO_CODE, "NRP_FAULT_TOLERANCE__FAULT_SCRIPT": script}


train = partial(run, script="unchanged.py", ranks=2, timeouts=SHORT, env=ZERO_CODE)


def told(root: Path, *arguments: str) -> Job:
    """One rank gets the signal; without a handler it dies of it, and the launcher ends the other."""
    job = start(root, "unchanged.py", "--steps", "2000", *arguments, ranks=2, launcher=torchrun, env=HANDLED)
    with ended_afterwards(job):
        wait_for(lambda: len(job.steps()) > 3, deadline_s=60)
        os.kill(job.events("rank_started", rank=1)[0]["pid"], signal.SIGTERM)
        job.wait(40.0)
    return job


JOBS = {
    "undisturbed": train,
    "faults": partial(train, restarts=2, env=faulty("kill@1:7,hang@0:8")),
    "error": partial(train, arguments=("--raise-at", "7"), restarts=1),
    "told": partial(told),
    "handled": lambda root: told(root, "--handler"),
}


def test_a_kill_and_a_hang_are_survived_by_the_script_s_own_checkpoints(jobs: Jobs) -> None:
    job = jobs["faults"].result()
    assert [event["kind"] for event in job.events("fault_injected")] == ["hang", "kill"]
    assert job.cycles() == [0, 1, 2]
    assert [event["hung"] for event in job.events("last_life", rank=0) if event["hung"]] == ["step"]
    assert job.result() == jobs["undisturbed"].result().result()


def test_a_normal_end_is_a_finished_verdict(jobs: Jobs) -> None:
    job = jobs["undisturbed"].result()
    assert job.verdict is not None
    assert (job.verdict.reason, job.verdict.step) == (Reason.FINISHED, 20)
    assert not job.events("session_started")


def test_what_cannot_be_done_is_said_once(jobs: Jobs) -> None:
    for name in ("undisturbed", "faults"):
        assert jobs[name].result().log.count("The script's state is neither saved nor restored") == 1


def test_an_error_is_no_end(jobs: Jobs) -> None:
    job = jobs["error"].result()
    assert {event["cycle"] for event in job.events("finished")} == {1}
    assert {event["exception"] for event in job.events("rank_failed")} == {"ValueError"}


def test_a_script_without_a_handler_is_told_and_ends(jobs: Jobs) -> None:
    job = jobs["told"].result()
    assert job.process.returncode == 1
    assert [event["rank"] for event in job.events("preemption_notice")][0] == 1
    assert job.verdict is None


def test_the_script_s_own_handler_decides(jobs: Jobs) -> None:
    job = jobs["handled"].result()
    assert job.process.returncode == 0, job.log
    assert job.events("preemption_notice", rank=1)
    [[_, said]] = job.said(1)
    assert said.startswith("saved ")
