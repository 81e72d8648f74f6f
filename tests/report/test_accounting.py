"""Where the time of a job went."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_resiliency_plugins.contract import Attempt
from nemo_resiliency_plugins.report.summary import Report, summarize
from nemo_resiliency_plugins.report.timeline import lanes
from tests.synthetic import EPOCH, Job


def told(job: Job) -> Report:
    return summarize(job.directory, EPOCH + 10_000)


def test_an_undisturbed_job(tmp_path: Path) -> None:
    job = Job(tmp_path / "nrp")
    job.start(0, saves=(5, 10, 20), left="finished")
    report = told(job)
    assert report.wall_s == pytest.approx(27)
    spent = {cause: seconds for cause, seconds in report.seconds.items() if seconds}
    steps = {"steps that counted": 20.7, "held by checkpoints": 0.3, "leaving together": 1}
    assert spent == pytest.approx({"start-up and imports": 2, "set-up and load": 3, **steps})
    assert report.goodput == pytest.approx(20.7 / 27)
    assert (report.state, report.step, report.durable) == ("finished", 20, 20)


def test_what_was_done_after_the_checkpoint_counts_once(tmp_path: Path) -> None:
    job = Job(tmp_path / "nrp")
    job.start(0, saves=(5, 10))  # step 10 is safe at 15
    for number in range(2):
        with job.rank(number, Attempt("7")) as rank:
            rank.tell(18, "progress", step=13)
            rank.killed(19)
    job.start(29, Attempt("7", cycle=1), resumed=10, saves=(20,), left="finished")
    report = told(job)
    assert report.seconds["steps done again"] == pytest.approx(19 - 15)
    assert report.seconds["restart in the job"] == pytest.approx(29 - 19)
    [failure] = report.failures
    assert failure.cost_s == pytest.approx(4 + 10 + 2 + 3)
    assert failure.steps_again == 3


def test_the_wait_for_the_next_attempt_is_not_a_restart(tmp_path: Path) -> None:
    job = Job(tmp_path / "nrp")
    job.start(0, saves=(5, 10), left="preempted")
    job.start(137, Attempt("7", restart_count=1), resumed=10, saves=(20,), left="finished")
    report = told(job)
    assert report.seconds["until the next attempt"] == pytest.approx(137 - 17)
    assert report.seconds["restart in the job"] == 0
    assert report.seconds["steps done again"] == 0
    assert report.attempts == 2


def test_steps_that_were_never_saved_do_not_count_once_the_job_has_failed(tmp_path: Path) -> None:
    job = Job(tmp_path / "nrp")
    job.start(0, saves=(5,))
    for number in range(2):
        with job.rank(number, Attempt("7")) as rank:
            rank.killed(20)
    assert told(job).seconds["steps done again"] == pytest.approx(20 - 10)
    assert told(job).state == "failed"


@pytest.mark.parametrize("left", ["finished", "preempted", "straggler_stop"])
def test_the_end_of_the_processes_is_no_step(tmp_path: Path, left: str) -> None:
    job = Job(tmp_path / "nrp")
    job.start(0, saves=(5,))
    for number in range(2):
        with job.rank(number, Attempt("7")) as rank:
            rank.tell(12 + number / 10, left, step=7)
            rank.tell(16, "rank_ended", pid=1)
    report = told(job)
    assert report.seconds["leaving together"] == pytest.approx(16 - 12.1)
    assert report.seconds["steps that counted"] == pytest.approx(12.1 - 5 - 0.1)
    for lane, until in zip(lanes(job.directory, report, [0, 1]), (12, 12.1), strict=True):
        assert max(segment.end for segment in lane.segments) == pytest.approx(until)


def unchanged_script(job: Job, at: float, attempt: Attempt) -> None:
    """Watched from its optimizer's first step on; there is no session."""
    for number in range(job.ranks):
        with job.rank(number, attempt) as rank:
            rank.tell(at, "rank_started", pid=1, node=rank.node, script="train.py")
            rank.tell(at + 6, "first_step", step=0)


def test_an_unchanged_script_has_ranks_and_steps_and_a_cost_that_ends(tmp_path: Path) -> None:
    job = Job(tmp_path / "nrp")
    unchanged_script(job, 0, Attempt("7"))
    assert summarize(job.directory, EPOCH + 30).goodput == pytest.approx(24 / 30)
    for number in range(2):
        with job.rank(number, Attempt("7")) as rank:
            rank.killed(40)
    unchanged_script(job, 42, Attempt("7", cycle=1))
    early, late = (summarize(job.directory, EPOCH + at) for at in (50, 90))
    assert (late.world_size, late.nodes, late.state) == (2, 2, "running")
    assert late.seconds["start-up and imports"] == pytest.approx(6 + 6)
    assert late.seconds["steps that counted"] == pytest.approx(90 - 48)
    [first], [again] = early.failures, late.failures
    assert str(first) == str(again)
    assert "so far" not in str(again)


times = st.lists(st.floats(0.1, 50), min_size=1, max_size=5)


@settings(max_examples=25, deadline=None)
@given(gaps=times, saves=st.lists(st.integers(0, 3), min_size=5, max_size=5), how=st.lists(st.booleans(), min_size=5))
def test_every_second_belongs_to_one_cause(gaps: list[float], saves: list[int], how: list[bool]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        job = Job(Path(directory) / "nrp")
        at, step = 0.0, 0
        for number, gap in enumerate(gaps):
            attempt = Attempt("7", restart_count=number if how[number] else 0, cycle=number)
            steps = tuple(step + 2 * each for each in range(1, saves[number] + 1))
            job.start(at, attempt, resumed=step, saves=steps)
            end = at + 5 + 2 * saves[number] + gap
            for rank_number in range(2):
                with job.rank(rank_number, attempt) as rank:
                    rank.killed(end)
            at, step = end + gap, steps[-1] if steps else step
        report = told(job)
        last = at - gaps[-1]
        assert sum(report.seconds.values()) == pytest.approx(report.wall_s)
        assert report.wall_s == pytest.approx(last)
        assert all(seconds >= 0 for seconds in report.seconds.values())
        assert 0 <= report.goodput <= 1
