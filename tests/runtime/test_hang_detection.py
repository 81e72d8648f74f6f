from __future__ import annotations

from functools import partial
from itertools import pairwise

from tests.harness import ENABLED, Job, Timeouts, run
from tests.runtime.conftest import Jobs

AT_ONCE = 4
SHORT_STEP = Timeouts(step=1.0, checkpointing=7200.0)
NO_WARMUP = {**ENABLED, "NRP_FAULT_TOLERANCE__WARMUP_STEPS": "0"}
WARMUP = ("--slow-steps", "3", "--slow-s", "1.6", "--step-s", "0.1", "--starts", "0", "1000", "--stop-after", "9")
PHASES = ("--setup-s", "2", "--evaluate-s", "2")
STOCK = Timeouts(heartbeats=(60.0, 2.5))

JOBS = {
    "warmup": partial(run, script="loop.py", arguments=(*WARMUP, "--steps", "12"), restarts=2, timeouts=SHORT_STEP),
    "gil": partial(run, script="gil.py", arguments=("2.5",), restarts=3, timeouts=SHORT_STEP, env=NO_WARMUP),
    "phases": partial(run, script="loop.py", arguments=PHASES, timeouts=SHORT_STEP),
    "caught": partial(run, script="caught.py", ranks=2, timeouts=SHORT_STEP),
    "stock": partial(
        run,
        script="loop.py",
        arguments=("--steps", "50", "--step-s", "0.1", "--stop-after", "45"),
        restarts=1,
        timeouts=STOCK,
    ),
    "cut": partial(run, script="loop.py", arguments=("--cut", "--step-s", "0.2"), timeouts=SHORT_STEP),
}


def hung(job: Job) -> list[tuple[int, str | None]]:
    """Cycle and section of each hang that rank 0 found its last life to have ended by."""
    return [(event["cycle"], event["hung"]) for event in job.events("last_life", rank=0)]


def test_slow_first_steps_are_no_hang_on_a_first_start_and_after_a_resume(jobs: Jobs) -> None:
    job = jobs["warmup"].result()
    ran = [(line.cycle, line.step) for line in job.steps()]
    assert ran == [(0, step) for step in range(10)] + [(1, step) for step in range(1000, 1012)]


def test_a_hang_after_the_warmup_is_killed_by_the_step_limit(jobs: Jobs) -> None:
    job = jobs["warmup"].result()
    assert hung(job) == [(1, "step")]
    last, first = next((a.time, b.time) for a, b in pairwise(job.steps()) if a.cycle != b.cycle)
    assert 1.0 < first - last < 15.0


def test_holding_the_interpreter_beyond_the_limit_is_killed(jobs: Jobs) -> None:
    assert not [text for cycle, text in jobs["gil"].result().said() if cycle == 0]


def test_holding_the_interpreter_in_a_pause_is_not(jobs: Jobs) -> None:
    assert (1, "survived a paused hold") in jobs["gil"].result().said()


def test_detection_is_back_after_an_error_in_a_pause(jobs: Jobs) -> None:
    job = jobs["gil"].result()
    said = [text for cycle, text in job.said() if cycle == 1]
    assert said[-1] == "raised in a pause"
    assert hung(job) == [(1, "step"), (2, "step")]
    assert job.said()[-1] == (2, "done")


def test_setup_and_evaluation_may_take_longer_than_a_step(jobs: Jobs) -> None:
    job = jobs["phases"].result()
    assert job.said() == [(0, "done")]
    assert job.verdict is not None


def test_limits_are_reported_as_they_were_given(jobs: Jobs) -> None:
    log = jobs["phases"].result().log
    assert log.count("section timeouts: ") == 1
    assert "checkpointing=7200 s" in log
    assert "step=1 s" in log


def test_a_section_without_a_limit_is_named_once(jobs: Jobs) -> None:
    assert jobs["phases"].result().log.count("section 'evaluation' has no timeout of its own") == 1


def test_an_error_that_the_caller_catches_is_no_hang(jobs: Jobs) -> None:
    job = jobs["caught"].result()
    assert job.said(0)[-1] == job.said(1)[-1] == (0, "done")


def test_an_error_leaves_the_session_without_waiting_for_other_ranks(jobs: Jobs) -> None:
    text = jobs["caught"].result().said(1)[0][1]
    assert float(text.split()[2]) < 1.0


def test_with_stock_heartbeats_a_healthy_run_outlives_the_timeout(jobs: Jobs) -> None:
    first = [line.time for line in jobs["stock"].result().steps() if line.cycle == 0]
    assert first[-1] - first[0] > 4.0


def test_with_stock_heartbeats_a_hung_rank_is_killed(jobs: Jobs) -> None:
    job = jobs["stock"].result()
    assert job.cycles() == [0, 1]
    assert job.said() == [(1, "done")]


def test_a_cut_monitor_socket_is_benign(jobs: Jobs) -> None:
    job = jobs["cut"].result()
    assert [event["event"] for event in job.events("monitor_lost")] == ["monitor_lost"]
    assert job.verdict is not None
    assert job.said() == [(0, "done")]
