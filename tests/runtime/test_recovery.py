from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nemo_resiliency_plugins.contract import Reason
from tests.harness import ENABLED, Job, Timeouts, ended_afterwards, run, start
from tests.runtime.conftest import Jobs

STEPS = ("--steps", "12", "--every", "4")
FAULTS = "kill@1:5,hang@2:7,exception@0:10"
SCRIPTED = {**ENABLED, "NRP_FAULT_TOLERANCE__FAULT_SCRIPT": FAULTS, "NRP_FAULT_TOLERANCE__WARMUP_STEPS": "2"}


RAISING = ("--steps", "30", "--every", "5", "--raise-at", "5", "15", "25")
JOBS = {
    "disturbed": partial(
        run, script="trainer.py", arguments=STEPS, ranks=4, restarts=3, timeouts=Timeouts(step=3.0), env=SCRIPTED
    ),
    "thrice": partial(run, script="loop.py", arguments=RAISING, ranks=2, restarts=3),
    "undisturbed": partial(run, script="trainer.py", arguments=STEPS, ranks=4),
}


@pytest.fixture
def disturbed(jobs: Jobs) -> Job:
    return jobs["disturbed"].result()


@pytest.fixture
def undisturbed(jobs: Jobs) -> Job:
    return jobs["undisturbed"].result()


@pytest.fixture
def failing_thrice(jobs: Jobs) -> Job:
    return jobs["thrice"].result()


@pytest.fixture
def failing(tmp_path: Path) -> Iterator[Job]:
    job = start(tmp_path, "failing.py", ranks=2)
    with ended_afterwards(job):
        yield job


def exceptions(job: Job) -> list[tuple[Any, ...]]:
    return [(event["cycle"], event["exception"], event["message"]) for event in job.events("rank_failed", rank=1)]


def test_killed_hung_and_raising_ranks_cost_no_bit_of_the_result(disturbed: Job, undisturbed: Job) -> None:
    assert disturbed.cycles() == [0, 1, 2, 3]
    assert disturbed.result() == undisturbed.result()


@pytest.mark.parametrize("name", ["disturbed", "undisturbed"])
def test_a_completed_run_leaves_the_finished_verdict(name: str, request: pytest.FixtureRequest) -> None:
    verdict = request.getfixturevalue(name).verdict
    assert (verdict.reason, verdict.code, verdict.step, verdict.rank) == (Reason.FINISHED, 0, 12, 0)


def test_every_scripted_fault_happens_once(disturbed: Job) -> None:
    faults = [(event["rank"], event["kind"], event["step"]) for event in disturbed.events("fault_injected")]
    assert sorted(faults) == [(0, "exception", 10), (1, "kill", 5), (2, "hang", 7)]


def test_the_stopped_rank_is_found_to_have_hung_in_its_step(disturbed: Job) -> None:
    lives = [(event["cycle"], event["section"], event["hung"]) for event in disturbed.events("last_life", rank=2)]
    assert (2, "step", "step") in lives


def test_the_killed_rank_is_not_taken_for_a_hang(disturbed: Job) -> None:
    lives = {event["cycle"]: event["hung"] for event in disturbed.events("last_life", rank=1)}
    assert lives[1] is None


def test_each_start_goes_on_from_the_newest_checkpoint(disturbed: Job) -> None:
    resumed = [event["step"] for event in disturbed.events("resumed", rank=3)]
    assert resumed[:1] == [None]
    assert resumed[1:] == [4, 4, 8]


def test_another_world_size_goes_on_from_the_same_checkpoint(undisturbed: Job, tmp_path: Path) -> None:
    shutil.copytree(undisturbed.checkpoints, tmp_path / "checkpoints")
    job = run(tmp_path, "trainer.py", ("--steps", "14", "--every", "4"), ranks=2)
    assert [line.step for line in job.steps()] == [12, 13]
    assert [event["step"] for event in job.events("resumed")] == [12, 12]


def test_three_errors_take_three_restarts(failing_thrice: Job) -> None:
    assert exceptions(failing_thrice) == [
        (cycle, "ValueError", f"bad batch at step {step}") for cycle, step in enumerate((5, 15, 25))
    ]
    assert failing_thrice.verdict is not None


def test_the_restart_count_is_seen_by_the_ranks_and_in_their_events(failing_thrice: Job) -> None:
    for rank in (0, 1):
        assert failing_thrice.cycles(rank) == [0, 1, 2, 3]
        started = [event["cycle"] for event in failing_thrice.events("session_started", rank=rank)]
        assert started == [0, 1, 2, 3]


def test_a_failing_rank_ends_the_job_in_seconds_though_another_sleeps(failing: Job) -> None:
    assert failing.wait(40.0) != 0
    raised = failing.events("session_failed", rank=1)[0]["time"]
    assert (failing.root / "log.txt").stat().st_mtime - raised < 15.0
    assert exceptions(failing) == [(0, "RuntimeError", "the shard is unreadable")]
