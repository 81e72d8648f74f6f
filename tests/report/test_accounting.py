"""Where the time of a job went."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_resiliency_plugins.contract import Attempt
from nemo_resiliency_plugins.report.summary import Report, summarize
from tests.synthetic import EPOCH, Job


def told(job: Job) -> Report:
    return summarize(job.directory, EPOCH + 10_000)


def test_an_undisturbed_job(tmp_path: Path) -> None:
    job = Job(tmp_path / "nrp")
    job.start(0, saves=(5, 10, 20), left="finished")
    report = told(job)
    assert report.wall_s == pytest.approx(27)
    spent = {cause: seconds for cause, seconds in report.seconds.items() if seconds}
    expected = {"start-up and imports": 2, "set-up and load": 3, "steps that counted": 21.7, "held by checkpoints": 0.3}
    assert spent == pytest.approx(expected)
    assert report.goodput == pytest.approx(21.7 / 27)
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
