"""Which rank was the first to fail, how, and what followed from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nemo_resiliency_plugins.contract import Attempt, rank_record_path
from nemo_resiliency_plugins.report.endings import How
from nemo_resiliency_plugins.report.summary import Failure, summarize
from nemo_resiliency_plugins.report.timeline import chosen_ranks
from tests.synthetic import EPOCH, Job

FIRST, AGAIN = Attempt("7"), Attempt("7", cycle=1)
SAVES = (5, 10)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    made = Job(tmp_path / "nrp", ranks=4, ranks_per_node=2)
    made.start(0, FIRST, saves=SAVES)
    return made


def only_failure(job: Job) -> Failure:
    report = summarize(job.directory, EPOCH + 1000)
    [failure] = report.failures
    return failure


def all_but(job: Job, *, rank: int, at: float) -> None:
    for number in range(job.ranks):
        if number != rank:
            with job.rank(number, FIRST) as other:
                other.lost_a_peer(at)


def test_an_exception_is_first_and_lost_connections_are_secondary(job: Job) -> None:
    all_but(job, rank=2, at=17.9)  # noted even before the one that was the cause
    with job.rank(2, FIRST) as rank:
        rank.raised(18, "ValueError", "no such batch\nsecond line")
    job.start(20, AGAIN, resumed=10, saves=(15,), left="finished")
    failure = only_failure(job)
    assert (failure.first.how, failure.first.rank, failure.first.node) == (How.RAISED, 2, "n1")
    assert failure.others == 3
    assert {end.how for end in failure.secondary} == {How.LEFT_ALONE}
    assert str(failure).startswith(
        "rank 2 on n1: ValueError: no such batch; started again in the job, resumed from step 10; cost "
    )


def test_the_exit_code_of_a_rank_is_told(job: Job) -> None:
    all_but(job, rank=3, at=18.1)
    with job.rank(3, FIRST) as rank:
        rank.raised(18, "SystemExit", "42", code=42)
    assert str(only_failure(job)).startswith("rank 3 on n1: exited with code 42; not started again so far")


def test_a_killed_rank_is_first_though_its_peers_tell_it_sooner(job: Job) -> None:
    all_but(job, rank=1, at=17.95)
    with job.rank(1, FIRST) as rank:
        rank.killed(18)
    first = only_failure(job).first
    assert (first.how, first.rank, first.what) == (How.KILLED, 1, "killed by a signal")


def test_a_rank_that_was_killed_after_the_exception_is_secondary(job: Job) -> None:
    with job.rank(0, FIRST) as rank:
        rank.raised(18, "ValueError", "no")
    for number in (1, 2, 3):
        with job.rank(number, FIRST) as other:
            other.killed(18.4)
    assert only_failure(job).first.rank == 0


def test_a_hang_is_told_by_the_next_start(job: Job) -> None:
    with job.rank(2, FIRST) as rank:
        rank.killed(25)
    all_but(job, rank=2, at=25.1)
    job.start(27, AGAIN, resumed=10, saves=(15,), left="finished")
    with job.rank(2, AGAIN) as rank:
        rank.says_it_hung(29, since=18, ended=25)
    failure = only_failure(job)
    assert (failure.first.how, failure.first.what, failure.first.rank) == (How.HUNG, "hung in step", 2)
    report = summarize(job.directory, EPOCH + 1000)
    assert report.seconds["until a fault was noticed"] == pytest.approx(25.2 - 18)


def test_a_hang_that_ended_the_job_is_told_by_the_ranks_record(job: Job) -> None:
    for number in range(4):
        with job.rank(number, FIRST) as rank:
            rank.killed(25 + number / 10)
    (job.directory / "ranks").mkdir()
    place = '"pid": 1, "section": "step", "step": 11, "node": "n0"'
    said = f'{{{place}, "since": {EPOCH + 18}, "limit_s": 5.0, "span_s": 1.0}}'
    (job.directory / "ranks" / "rank00001.json").write_text(f'{said}\n{{"pid": 1, "ended": {EPOCH + 25.1}}}\n')
    assert only_failure(job).first.what == "hung in step"


def both_hang(job: Job, **of_rank_1: Any) -> str:
    """Ranks 0 and 1 overrun their limit, and rank 0's monitor is the first to see it."""
    for number, at in ((0, 25.0), (1, 25.2)):
        with job.rank(number, FIRST) as rank:
            rank.killed(at)
    for number in (2, 3):
        with job.rank(number, FIRST) as rank:
            rank.lost_a_peer(25.3)
    job.start(27, AGAIN, resumed=10, saves=(15,), left="finished")
    told: dict[str, Any] = {"since": 18.0, "ended": 25.0, "step": 12}
    for number, changes in ((0, {}), (1, {"ended": 25.2, **of_rank_1})):
        with job.rank(number, AGAIN) as rank:
            rank.says_it_hung(29, **{**told, **changes})
    return str(only_failure(job))


def test_of_ranks_that_hang_together_none_is_accused(job: Job) -> None:
    said = both_hang(job, since=18.4)
    assert said.startswith("one of ranks 0, 1 on n0: hung in step at step 12; started again")
    assert [end.rank for end in only_failure(job).secondary] == [2, 3]
    assert chosen_ranks(summarize(job.directory, EPOCH + 1000), 2) == [0, 1]


def test_a_rank_that_is_behind_is_the_one_that_others_waited_for(job: Job) -> None:
    """Though its monitor was not the first."""
    said = both_hang(job, since=16.5, step=11, hung=False)
    assert said.startswith("rank 1 on n0: hung in step, behind the other ranks at step 11; started again")


def test_an_injected_hang_is_known_whoever_else_waited(job: Job) -> None:
    with job.rank(1, FIRST) as rank:
        rank.tell(18, "fault_injected", kind="hang", step=12)
    assert both_hang(job, since=18.0).startswith("rank 1 on n0: hung in step (injected: hang) at step 12; started")
    assert next((end.rank, end.what) for end in only_failure(job).secondary) == (0, "waited in step")


def test_an_exception_is_told_with_its_step_and_line(job: Job) -> None:
    all_but(job, rank=2, at=18.1)
    with job.rank(2, FIRST) as rank:
        known = {"exception": "ValueError", "message": "no", "traceback": [], "step": 13, "where": "train.py:14"}
        rank.tell(18, "session_failed", **known)
        rank.raised(18.05, "ValueError", "no", where="train.py:14")
    job.start(20, AGAIN, resumed=10, saves=(15,), left="finished")
    told = "rank 2 on n1: ValueError: no at step 13 (train.py:14); started again in the job, resumed from step 10; cost"
    assert str(only_failure(job)).startswith(told)
    assert str(only_failure(job)).endswith(", 3 steps done again")


def test_an_injected_exception_is_told_once(job: Job) -> None:
    all_but(job, rank=2, at=18.1)
    with job.rank(2, FIRST) as rank:
        rank.tell(18, "fault_injected", kind="exception", step=11, requested=True)
        rank.raised(18, "InjectedError", "asked for, injected at step 11", step=11, where="train.py:31")
    job.start(20, AGAIN, resumed=10, saves=(15,), left="finished")
    told = "rank 2 on n1: an injected exception at step 11 (train.py:31); started again in the job, resumed from"
    assert str(only_failure(job)).startswith(told)
    assert str(only_failure(job)).endswith(", 1 step done again")


def test_a_lost_node_is_named_by_its_ranks(job: Job) -> None:
    for number in (0, 1):  # n0 is stopped by its launcher, n1 is silent
        with job.rank(number, FIRST) as rank:
            rank.killed(30)
    job.start(40, Attempt("7", restart_count=1), resumed=10, saves=(15,), left="finished")
    failure = only_failure(job)
    assert (failure.first.how, failure.first.node) == (How.VANISHED, "n1")
    assert "started again by a new attempt" in str(failure)


def test_ranks_of_a_running_job_have_not_failed(job: Job) -> None:
    report = summarize(job.directory, EPOCH + 20)
    assert report.failures == []
    assert report.state == "running"
    assert report.is_well


def test_a_silent_job_is_not_called_running(job: Job) -> None:
    report = summarize(job.directory, EPOCH + 15 + 90)
    assert report.state == "no news for 90 s"
    assert not report.is_well


@pytest.mark.parametrize(("limit_s", "is_well"), [(600.0, True), (80.0, False), (None, False)])
def test_a_silent_job_is_well_as_long_as_its_ranks_are_within_their_limits(
    job: Job, limit_s: float | None, is_well: bool
) -> None:
    for rank in range(job.ranks):
        path = rank_record_path(job.directory, rank)
        path.parent.mkdir(exist_ok=True)
        said = {
            "section": "checkpointing",
            "since": EPOCH + 15,
            "limit_s": limit_s,
            "step": 5,
            "node": "",
            "span_s": 1.0,
        }
        path.write_text(json.dumps({**said, "pid": 1}) + "\n")
    report = summarize(job.directory, EPOCH + 15 + 90)
    assert report.is_well is is_well
    assert not report.is_over
    assert report.state == ("running, quiet within the limits of hang detection" if is_well else "no news for 90 s")


@pytest.mark.parametrize("left", ["finished", "preempted"])
def test_leaving_together_is_no_failure(tmp_path: Path, left: str) -> None:
    job = Job(tmp_path / "nrp")
    job.start(0, FIRST, saves=SAVES, left=left)
    report = summarize(job.directory, EPOCH + 1000)
    assert report.failures == []
    assert report.starts[0].how == left


def test_a_script_without_a_session_that_leaves_with_0_has_not_failed(tmp_path: Path) -> None:
    job = Job(tmp_path / "nrp")
    for number in range(2):
        with job.rank(number, FIRST) as rank:
            rank.tell(0, "rank_started", pid=1, node="n0", script="train.py")
            rank.tell(5, "rank_left")
            rank.tell(5.1, "rank_ended", pid=1)
    assert summarize(job.directory, EPOCH + 1000).failures == []


def test_an_injected_fault_is_the_cause_whatever_else_came_first(job: Job) -> None:
    with job.rank(3, FIRST) as rank:
        rank.tell(17, "fault_injected", kind="hang", step=12)
        rank.killed(25)
    with job.rank(0, FIRST) as rank:
        rank.raised(24, "ValueError", "an error of its own")
    first = only_failure(job).first
    assert (first.rank, first.injected, first.step) == (3, "hang", 12)


def test_a_life_in_the_process_is_a_start_of_its_own(tmp_path: Path) -> None:
    job = Job(tmp_path / "nrp")
    for number in range(2):
        with job.rank(number, FIRST) as rank:
            rank.tell(0, "rank_started", pid=1, node="n0", script="train.py")
            rank.tell(1, "life_began", iteration=0, world_size=2)
            rank.tell(2, "session_started", node="n0", world_size=2)
            rank.tell(3, "first_step", step=0)
            if number == 1:
                rank.tell(9, "life_failed", exception="ValueError", message="boom", iteration=0, traceback=[])
            rank.tell(10, "life_ended", iteration=0)
            rank.tell(11, "life_began", iteration=1, world_size=2)
            rank.tell(11.5, "session_started", node="n0", world_size=2)
            rank.tell(12, "resumed", step=0, tier=None, seconds=0)
            rank.tell(13, "first_step", step=0)
            rank.tell(20, "finished", step=7)
            rank.tell(21, "rank_ended", pid=1)
    report = summarize(job.directory, EPOCH + 1000)
    assert [(start.life, start.how) for start in report.starts] == [
        (0, "rank 1 on n0: ValueError: boom"),
        (1, "finished"),
    ]
    assert "started again in the process from step 0" in str(report.failures[0])


def test_launchers_that_count_their_own_restarts_are_one_start(job: Job) -> None:
    """Of NVRx 0.4.1, the launcher of the other node goes on counting from 0."""
    all_but(job, rank=2, at=18.1)
    with job.rank(2, FIRST) as rank:
        rank.killed(18)
    job.start(20, FIRST, resumed=10, saves=(15,), left="finished", of=range(2))
    job.start(20, AGAIN, resumed=10, saves=(15,), left="finished", of=range(2, 4))
    report = summarize(job.directory, EPOCH + 1000)
    assert [start.how for start in report.starts] == ["rank 2 on n1: killed by a signal", "finished"]


def test_what_the_batch_script_and_the_command_line_tell_is_of_the_start_before_it(job: Job) -> None:
    told = job.directory / "events"
    common = '"rank": null, "attempt": "7-0-0", "cycle": null, "node": "n1"'
    (told / "7-0-0-policy.jsonl").write_text(f'{{"event": "node_excluded", "time": {EPOCH + 500}, {common}}}\n')
    injected = f'"event": "fault_injected", "time": {EPOCH + 17}, "rank": 1, "kind": "kill", "step": null'
    (told / "7-0-0-requests.jsonl").write_text(f'{{{injected}, "attempt": "7-0-0", "cycle": 5}}\n')
    with job.rank(1, FIRST) as rank:
        rank.killed(18)
    report = summarize(job.directory, EPOCH + 1000)
    assert [failure.first.injected for failure in report.failures] == ["kill"]
    assert report.wall_s == pytest.approx(18)
    assert report.news == ["node excluded: node=n1"]
