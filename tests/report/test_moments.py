"""What is told from moment to moment, while a fault is being noticed and cleared: no wrong cause, no fault twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_resiliency_plugins.contract import Attempt
from nemo_resiliency_plugins.report.summary import Report, summarize
from tests.synthetic import EPOCH, Job

FIRST, AGAIN = Attempt("7"), Attempt("7", cycle=1)
UNTOLD = "one of ranks 0, 1 on n0, n1: killed by a signal, the cause is not known yet; started again in the job"


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Its ranks are watched, and rank 1 does not go on in the step that both begin at 17."""
    made = Job(tmp_path / "nrp")
    made.start(0, FIRST, saves=(5, 10))
    with made.rank(0, FIRST) as rank:
        rank.tell(6, "timeouts", kind="section timeouts", limits_s={"step": 5.0})
    made.record(0, since=17.9, ended=None)
    made.record(1, since=16, ended=None, step=11)
    return made


def seen(job: Job, at: float) -> Report:
    return summarize(job.directory, EPOCH + at)


def only_failure(job: Job, at: float) -> str:
    [failure] = seen(job, at).failures
    return str(failure)


def stopped(job: Job, rank: int, at: float) -> None:
    with job.rank(rank, FIRST) as each:
        each.killed(at)


def hang_is_cleared(job: Job) -> None:
    """Both ranks overran their limit; the records of both are there."""
    for rank, since, step in ((0, 17.9, 12), (1, 16.0, 11)):
        stopped(job, rank, 23 + rank / 10)
        job.record(rank, since=since, ended=23 + rank / 10, step=step)


def begins_again(job: Job) -> None:
    for number in range(2):
        with job.rank(number, AGAIN) as rank:
            rank.tell(25, "rank_started", pid=2, node=rank.node, script="train.py")


def test_an_injected_stop_is_news_until_its_failure_tells_of_it(job: Job) -> None:
    assert seen(job, 17).news == []
    job.injected(16.5, 1, "stop", FIRST)
    assert seen(job, 18).news == ["rank 1 on n1: injected: stop"]
    assert seen(job, 18).failures == []
    hang_is_cleared(job)
    assert seen(job, 24).news == []
    assert only_failure(job, 24).startswith("rank 1 on n1: hung in step, behind the other ranks (injected: stop)")


def test_a_preemption_that_was_asked_for_is_told_once(job: Job) -> None:
    job.injected(16.5, 0, "preempt", FIRST)
    assert seen(job, 18).news == ["rank 0 on n0: injected: preempt"]


def test_a_stopped_rank_is_the_cause_before_its_own_end(job: Job) -> None:
    """The launcher ends the others at once, and a stopped one when its patience is over."""
    job.injected(16.5, 1, "stop", FIRST)
    stopped(job, 0, 23)
    job.record(0, since=17.9, ended=23)
    assert only_failure(job, 24).startswith("rank 1 on n1: silent (injected: stop); not started again so far")


def test_nobody_is_accused_while_a_rank_has_not_ended(job: Job) -> None:
    stopped(job, 0, 23)
    job.record(0, since=17.9, ended=23)
    assert only_failure(job, 24).startswith("one of ranks 0, 1 on n0, n1: hung in step")


def test_a_hang_stays_one_failure_with_one_cause_while_the_next_start_begins(job: Job) -> None:
    hang_is_cleared(job)
    before = only_failure(job, 24)
    assert before.startswith("rank 1 on n1: hung in step, behind the other ranks at step 11; not started again so far")
    begins_again(job)
    begun = only_failure(job, 26)
    assert begun.startswith("rank 1 on n1: hung in step, behind the other ranks at step 11; started again in the job")
    for number, since, step in ((0, 17.9, 12), (1, 16.0, 11)):
        with job.rank(number, AGAIN) as rank:
            rank.tell(27, "session_started", pid=2, node=rank.node, world_size=2)
            rank.says_it_hung(27, since=since, ended=23, step=step)
            rank.tell(28, "first_step", step=10)
        job.record(number, since=27, ended=None)
    assert only_failure(job, 40).startswith("rank 1 on n1: hung in step, behind the other ranks at step 11; started")


@pytest.mark.parametrize("lost", [[0], [1], [0, 1]])
def test_without_what_ranks_did_last_the_cause_is_left_open_until_the_new_ones_have_told(
    job: Job, lost: list[int]
) -> None:
    """A new process takes its record over a moment before it tells what stood there."""
    hang_is_cleared(job)
    begins_again(job)
    for number in lost:
        with job.rank(number, AGAIN) as rank:
            rank.tell(27, "session_started", pid=2, node=rank.node, world_size=2)
        job.record(number, since=27, ended=None, section="setup", step=0)
    assert only_failure(job, 27).startswith(UNTOLD)
    for number in lost:
        with job.rank(number, AGAIN) as rank:
            rank.says_it_hung(27.1, since=16.0 if number else 17.9, ended=23, step=11 if number else 12)
    assert only_failure(job, 28).startswith("rank 1 on n1: hung in step, behind the other ranks at step 11")


@pytest.mark.parametrize(("section", "step"), [("step", 12), ("checkpointing", 11)])
def test_a_rank_has_not_hung_in_a_step_that_all_have_committed(job: Job, section: str, step: int) -> None:
    """Its record tells the step at whose begin it was written: short steps after it share the section."""
    with job.rank(0, FIRST) as rank:
        rank.tell(17, "checkpoint", step=12, tier="global", written=True, seconds=0.1)
    stopped(job, 1, 23)
    job.record(1, since=16, ended=23, step=11, section=section)
    stopped(job, 0, 23)
    job.record(0, since=18, ended=23)
    assert f": hung in {section}, behind the other ranks at step {step};" in only_failure(job, 24)


def test_what_nobody_has_told_until_the_first_step_was_a_signal(job: Job) -> None:
    for number in range(2):
        stopped(job, number, 23 + number / 10)
        job.record(number, since=26, ended=None)
    begins_again(job)
    assert only_failure(job, 26).startswith(UNTOLD)
    for number in range(2):
        with job.rank(number, AGAIN) as rank:
            rank.tell(27, "session_started", pid=2, node=rank.node, world_size=2)
            rank.tell(28, "resumed", step=10, tier="global", seconds=0.5)
    assert only_failure(job, 29).startswith("rank 0 on n0: killed by a signal; started again in the job, resumed from")


def test_a_start_that_never_came_to_a_session_has_not_hung(job: Job) -> None:
    """The records that the third start takes over are those of the first."""
    hang_is_cleared(job)
    begins_again(job)
    for number in range(2):
        with job.rank(number, AGAIN) as rank:
            rank.raised(26, "ImportError", "no such library")
    job.start(30, Attempt("7", cycle=2), resumed=10)
    for number, since, step in ((0, 17.9, 12), (1, 16.0, 11)):
        with job.rank(number, Attempt("7", cycle=2)) as rank:
            rank.says_it_hung(33, since=since, ended=23, step=step)
    told = [failure.first.what for failure in seen(job, 40).failures]
    assert told == ["hung in step, behind the other ranks", "ImportError: no such library"]
