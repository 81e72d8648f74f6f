"""How a job stands, while it runs, between two starts, and for good."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nemo_resiliency_plugins import evidence
from nemo_resiliency_plugins.contract import Attempt
from nemo_resiliency_plugins.report.state import state_of
from nemo_resiliency_plugins.report.summary import Report, summarize
from tests.synthetic import EPOCH, Job

FIRST, AGAIN = Attempt("local"), Attempt("local", cycle=1)


@contextlib.contextmanager
def launcher(job: Job, machine: str | None = None, left: str | None = None) -> Iterator[None]:
    """A real process, which stands in for the one that starts ranks again; the ranks have started."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        processes = [(process.pid, evidence.started(process.pid))]
        job.launcher.update(machine=machine or evidence.machine(), processes=processes)
        job.start(0, FIRST, saves=(5, 10), left=left)
        yield
    finally:
        process.communicate(b"\n")


def failed(job: Job, at: float = 18) -> None:
    with job.rank(1, FIRST) as rank:
        rank.raised(at, "ValueError", "no")
    with job.rank(0, FIRST) as rank:
        rank.lost_a_peer(at + 0.1)


def seen(job: Job, at: float) -> Report:
    return summarize(job.directory, EPOCH + at)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path / "nrp")


def test_a_job_whose_launcher_has_ended_has_failed_at_once(job: Job) -> None:
    with launcher(job):
        failed(job)
        report = seen(job, 19)
        assert (report.state, report.is_over) == ("between two starts", False)
        assert "not started again so far; cost" in str(report.failures[0])
        assert str(report.failures[0]).endswith(" so far")
    report = seen(job, 19)
    assert (report.state, report.is_over, report.is_well) == ("failed", True, False)
    assert "not started again; cost" in str(report.failures[0])


def test_a_job_whose_launcher_is_there_has_not_failed_however_long_it_takes(job: Job) -> None:
    with launcher(job):
        failed(job)
        report = seen(job, 500)
    assert (report.state, report.is_over) == ("between two starts", False)


def test_the_launcher_of_another_machine_may_be_there(job: Job) -> None:
    with launcher(job, machine="another"):
        failed(job)
    assert seen(job, 19).state == "between two starts"
    assert "not started again so far" in str(seen(job, 19).failures[0])


def test_a_job_that_was_killed_with_its_launcher_does_not_run(job: Job) -> None:
    with launcher(job):
        assert seen(job, 20).state == "running"
    report = seen(job, 20)
    assert (report.state, report.is_over) == ("failed", True)
    assert "vanished" in str(report.failures[0])


def test_ranks_that_left_together_do_not_come_back_without_a_launcher(job: Job) -> None:
    with launcher(job, left="preempted"):
        assert not seen(job, 20).is_over
    report = seen(job, 20)
    assert (report.state, report.is_over, report.is_well) == ("left together: preempted", True, True)


def test_until_the_next_start_has_resumed_what_was_known_before_holds(job: Job) -> None:
    job.start(0, FIRST, saves=(5, 10))
    with job.rank(0, FIRST) as rank:
        rank.tell(17, "progress", step=12)
    failed(job)
    before = seen(job, 18.2)
    for number in range(2):
        with job.rank(number, AGAIN) as rank:
            rank.tell(20, "rank_started", pid=1, node=rank.node, script="train.py")
    during = seen(job, 23)
    assert (during.step, during.durable) == (12, 10)
    assert state_of(job.directory, EPOCH + 23).step == 12
    assert during.seconds["steps that counted"] == pytest.approx(before.seconds["steps that counted"])
    assert during.seconds["start-up and imports"] == pytest.approx(2 + 3)
    assert str(during.failures[0]).endswith("not resumed so far; cost 8.0 s so far")


def test_what_runs_is_counted_until_now(job: Job) -> None:
    job.start(0, FIRST, saves=(5, 10))
    assert seen(job, 20).wall_s == pytest.approx(20)
    failed(job)
    report = seen(job, 25)
    assert report.seconds["restart in the job"] == pytest.approx(25 - 18.2)
    assert report.failures[0].cost_s == pytest.approx(3.2 + 6.8)
    assert state_of(job.directory, EPOCH + 25).quiet_s == pytest.approx(25 - 18.2)


def test_a_run_that_resumed_and_had_nothing_to_do_has_its_checkpoint(job: Job) -> None:
    for number in range(2):
        with job.rank(number, FIRST) as rank:
            rank.tell(0, "session_started", pid=1, node=rank.node, world_size=2)
            rank.tell(1, "resumed", step=60, tier="global", seconds=0.5)
            rank.tell(2, "finished", step=60)
    report = seen(job, 20)
    assert (report.state, report.step, report.durable) == ("finished", 60, 60)
