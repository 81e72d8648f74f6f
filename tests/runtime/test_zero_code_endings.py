"""A training script without a line of ours: hangs, errors, notices, learned limits."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path

import pytest

from tests.harness import Job, ended_afterwards, run, start, torchrun, wait_for
from tests.runtime.conftest import Jobs
from tests.runtime.test_zero_code import SHORT, ZERO_CODE, faulty

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

HANDLED = {**ZERO_CODE, "NRP_PREEMPTION__EXIT_SIGNAL_HANDLER": "true"}
LEARNING = {
    **ZERO_CODE,
    "NRP_FAULT_TOLERANCE__CALC_FT_TIMEOUTS": "true",
    "NRP_FAULT_TOLERANCE__TIMEOUT_FLOOR_S": "0.5",
    "NRP_FAULT_TOLERANCE__TIMEOUT_SAFETY_FACTOR": "2",
}


def told(root: Path, *arguments: str) -> Job:
    """One rank gets the signal; without a handler it dies of it, and the launcher ends the other."""
    job = start(root, "unchanged.py", "--steps", "2000", *arguments, ranks=2, launcher=torchrun, env=HANDLED)
    with ended_afterwards(job):
        wait_for(lambda: len(job.steps()) > 3, deadline_s=60)
        os.kill(job.events("rank_started", rank=1)[0]["pid"], signal.SIGTERM)
        job.wait(40.0)
    return job


train = partial(run, script="unchanged.py", ranks=2, timeouts=SHORT, env=ZERO_CODE)
JOBS = {
    "undisturbed": train,
    "hang": partial(train, restarts=2, env=faulty("kill@1:7,hang@0:8"), deadline_s=240),
    "error": partial(train, arguments=("--raise-at", "7"), restarts=1),
    "told": told,
    "handled": lambda root: told(root, "--handler"),
    "learning": partial(train, arguments=("--steps", "650"), timeouts=SHORT, env=LEARNING),
}


def test_a_hang_is_seen_between_two_steps_of_the_optimizer_and_a_kill_at_once(jobs: Jobs) -> None:
    job = jobs["hang"].result()
    assert job.cycles() == [0, 1, 2]
    assert [event["hung"] for event in job.events("last_life", rank=0) if event["hung"]] == ["step"]
    assert job.result() == jobs["undisturbed"].result().result()


def test_an_error_is_no_end(jobs: Jobs) -> None:
    job = jobs["error"].result()
    assert {event["cycle"] for event in job.events("finished")} == {1}
    assert {event["exception"] for event in job.events("rank_failed")} == {"ValueError"}


def test_a_script_without_a_handler_is_told_and_ends(jobs: Jobs) -> None:
    job = jobs["told"].result()
    assert job.process.returncode == 1
    assert job.events("preemption_notice", rank=1)
    assert job.verdict is None


def test_the_script_s_own_handler_decides_and_that_is_no_end(jobs: Jobs) -> None:
    job = jobs["handled"].result()
    assert job.process.returncode == 0, job.log
    assert job.events("preemption_notice", rank=1)
    [[_, said]] = job.said(1)
    assert said.startswith("saved ")
    assert {event["rank"] for event in job.events("finished")} <= {0}
    assert job.verdict is None


def test_a_limit_is_learned_after_ten_times_the_configured_one(jobs: Jobs) -> None:
    job = jobs["learning"].result()
    [first, *learned] = job.events("timeouts", rank=1)
    assert first["limits_s"]["step"] == 3.0
    assert learned[0]["time"] - first["time"] > 30.0
    assert 0.5 <= learned[0]["limits_s"]["step"] < 3.0
    assert (job.nrp / "ranks" / "rank00001" / "ft_state.json").exists()
