"""Ranks under real launchers that are told that their time is up."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from nemo_resiliency_plugins.contract import ENV_NOTICE, NOTICE_LAUNCHER, Reason
from tests.harness import ENABLED, Job, ended_afterwards, ft_launcher, run, start, torchrun, wait_for
from tests.runtime.conftest import Jobs

HANDLED = {"NRP_PREEMPTION__EXIT_SIGNAL_HANDLER": "true"}
UNDER_LAUNCHER = {**ENABLED, **HANDLED, ENV_NOTICE: NOTICE_LAUNCHER}
STEPS = 300
WHOLE = ("--steps", str(STEPS), "--step-s", "0")
LATENCY_S = 2.0
"""From the signal, or the end of the step that was running then, to the end of the last step."""


def shielded(ranks: int, restarts: int) -> list[str]:
    """As the node script starts it."""
    own = ["-m", "nemo_resiliency_plugins.runtime.launcher", "--shield=SIGTERM"]
    return [sys.executable, *own, *ft_launcher(ranks, restarts)]


def pids(job: Job, cycle: int = 0) -> list[int]:
    return [event["pid"] for event in job.events("rank_started") if event["cycle"] == cycle]


def signal_all(targets: list[int], number: int = signal.SIGTERM, skew_s: float = 0.0, seed: int = 0) -> None:
    """Each at a time of its own, as a cluster's daemons do."""
    draw = random.Random(seed)

    def kill(pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    timers = [threading.Timer(draw.random() * skew_s, kill, [pid]) for pid in targets]
    for timer in timers:
        timer.start()
    for timer in timers:
        timer.join()


def reached(job: Job, steps: int, ranks: int) -> bool:
    """Whether every rank has begun more than so many steps."""
    return all(len(job.steps(rank)) > steps for rank in range(ranks))


def texts(job: Job, rank: int) -> list[str]:
    return [text for _, text in job.said(rank)]


def preempted(
    root: Path,
    at: Callable[[Job], object],
    targets: Callable[[Job], list[int]] = pids,
    *arguments: str,
    ranks: int = 2,
    skew_s: float = 0.0,
    launcher: Callable[[int, int], list[str]] = torchrun,
    env: dict[str, str] = HANDLED,
) -> Job:
    """Start the job, wait for ``at``, signal ``targets``, and wait for its end with code 0."""
    job = start(root, "preempted.py", *arguments, ranks=ranks, launcher=launcher, env=env)
    with ended_afterwards(job):
        wait_for(lambda: at(job), deadline_s=60, what="the moment of the signal")
        (root / "signalled").write_text(str(time.time()))
        signal_all(targets(job), skew_s=skew_s, seed=len(arguments))
        return job.succeed(40.0)


def signalled_at(job: Job) -> float:
    return float((job.root / "signalled").read_text())


def stops(job: Job, ranks: int) -> set[int]:
    """The number of steps after which each rank has stopped."""
    return {event["step"] for rank in range(ranks) for event in job.events("preempted", rank=rank)}


def one_of(rank: int) -> Callable[[Job], list[int]]:
    return lambda job: [event["pid"] for event in job.events("rank_started", rank=rank)]


def process_group(job: Job) -> list[int]:
    return [pid for rank in pids(job) for pid in [rank, *(child.pid for child in psutil.Process(rank).children())]]


def launcher_and_ranks(job: Job) -> list[int]:
    return [job.process.pid, *pids(job)]


def stepping(steps: int, ranks: int = 2) -> Callable[[Job], bool]:
    return lambda job: reached(job, steps, ranks)


def said(text: str) -> Callable[[Job], bool]:
    return lambda job: all(text in texts(job, rank) for rank in range(2))


def uneven(root: Path, seed: int, before: Job | None = None) -> Job:
    """Four ranks; one of them, or all with a skew, are signalled somewhere on the way."""
    if before is not None:
        shutil.copytree(before.checkpoints, root / "checkpoints")
    draw = random.Random(seed)
    targets = one_of(seed % 5) if seed % 5 < 4 else pids
    begun = stepping(draw.randrange(8), ranks=4)
    arguments = ("--steps", str(STEPS), "--step-s", "0.05")
    job = preempted(root, begun, targets, *arguments, ranks=4, skew_s=draw.random() * 0.8)
    assert len(stops(job, 4)) == 1
    assert len(job.events("preempted")) == 4
    assert job.steps()[-1].time - signalled_at(job) < LATENCY_S
    return job


def in_a_row(root: Path, seeds: Iterable[int]) -> Job:
    """Each run goes on where the one before was stopped; the last one is left alone."""
    job = None
    for seed in seeds:
        job = uneven(root / str(seed), seed, job)
    assert job is not None
    shutil.copytree(job.checkpoints, root / "last" / "checkpoints")
    return run(root / "last", "preempted.py", WHOLE, ranks=4, launcher=torchrun, env=HANDLED)


def a_kill_under_a_shielded_launcher(root: Path, env: dict[str, str]) -> Job:
    """Rank 1 dies while rank 0 is in no collective that would tell it so."""
    arguments = ("--steps", "8", "--wait-at", "3")
    job = start(root, "preempted.py", *arguments, ranks=2, restarts=1, launcher=shielded, env=env)
    with ended_afterwards(job):
        wait_for(lambda: "late" in texts(job, 0), deadline_s=60)
        (root / "signalled").write_text(str(time.time()))
        os.kill(one_of(1)(job)[0], signal.SIGKILL)
        return job.succeed(60.0)


WITHOUT = {**ENABLED, ENV_NOTICE: NOTICE_LAUNCHER}
LOADING = ("--workers", "2", "--steps", "400")
JOBS = {
    "undisturbed": partial(run, script="preempted.py", arguments=WHOLE, ranks=4, launcher=torchrun, env=HANDLED),
    "in a row": partial(in_a_row, seeds=(1, 3)),
    "notice": partial(
        lambda root, *arguments: preempted(
            root, stepping(3), launcher_and_ranks, "--steps", "400", launcher=shielded, env=UNDER_LAUNCHER, skew_s=0.05
        )
    ),
    "kill": partial(a_kill_under_a_shielded_launcher, env=UNDER_LAUNCHER),
    "kill, no handler": partial(a_kill_under_a_shielded_launcher, env=WITHOUT),
    "set-up": lambda root: preempted(root, said("set-up"), pids, "--setup-s", "30"),
    "start": lambda root: preempted(
        root, lambda job: len(pids(job)) == 2, launcher_and_ranks, launcher=shielded, env=UNDER_LAUNCHER
    ),
    "evaluation": lambda root: preempted(root, said("evaluating"), one_of(1), "--evaluate-at", "2"),
    "save": lambda root: preempted(root, said("saving 3"), pids, "--save-s", "2", "--every", "3"),
    "collective": lambda root: preempted(
        root, lambda job: "late" in texts(job, 0), one_of(1), "--wait-at", "3", "--steps", "400"
    ),
    "unattached": lambda root: preempted(root, stepping(3), one_of(1), "--unattached", "--steps", "400"),
    "dissolved": lambda root: run(
        root, "preempted.py", ("--steps", "3", "--destroy-inside"), ranks=2, launcher=torchrun, env=HANDLED
    ),
    "workers": lambda root: preempted(root, stepping(3), process_group, *LOADING),
}


@pytest.fixture
def ended(jobs: Jobs) -> Callable[[str], Job]:
    return lambda name: jobs[name].result()


Ended = Callable[[str], Job]


def test_all_ranks_stop_after_one_step_and_no_bit_of_the_result_is_lost(ended: Ended) -> None:
    assert ended("in a row").result() == ended("undisturbed").result()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(5, 35, 5))
def test_so_it_is_thirty_times(ended: Ended, first: int, tmp_path: Path) -> None:
    assert in_a_row(tmp_path, range(first, first + 5)).result() == ended("undisturbed").result()


def test_a_signal_that_the_launcher_has_too_is_a_notice(ended: Ended) -> None:
    job = ended("notice")
    assert len(stops(job, 2)) == 1
    assert job.verdict is not None
    assert job.verdict.reason is Reason.PREEMPTED
    assert "hooks ran" in texts(job, 0)


def test_a_launcher_that_stops_its_ranks_is_no_notice_and_they_leave_at_once(ended: Ended) -> None:
    job = ended("kill")
    assert job.cycles() == [0, 1]
    assert not job.events("preemption_notice")
    assert [event["rank"] for event in job.events("stopped_by_launcher")] == [0]
    assert job.verdict is not None
    assert job.verdict.reason is Reason.FINISHED


def test_a_restart_waits_no_longer_for_the_survivors_than_without_the_handler(ended: Ended) -> None:
    def gone_after_s(job: Job) -> float:
        return job.events("rank_ended", rank=0)[0]["time"] - signalled_at(job)

    assert gone_after_s(ended("kill")) < gone_after_s(ended("kill, no handler")) + 0.5


@pytest.mark.parametrize("name", ["set-up", "start"])
def test_before_anything_can_be_lost_the_ranks_leave_at_once(ended: Ended, name: str) -> None:
    job = ended(name)
    assert job.verdict is not None
    assert (job.verdict.reason, job.verdict.step) == (Reason.PREEMPTED, 0)
    assert not job.steps()
    assert not job.checkpoints.exists()


def test_an_evaluation_ends_early_on_all_ranks_alike(ended: Ended) -> None:
    job = ended("evaluation")
    assert len({texts(job, rank)[-3] for rank in range(2)}) == 1
    assert texts(job, 0)[-3].startswith("evaluated ")
    assert stops(job, 2) == {3}


def test_a_slow_save_is_not_cut_and_not_repeated(ended: Ended) -> None:
    job = ended("save")
    assert texts(job, 1) == ["set-up", "saving 3", "saved 3", "stopped: preempted", "hooks ran"]


def test_a_signal_is_noticed_while_the_main_thread_waits_in_a_collective(ended: Ended) -> None:
    job = ended("collective")
    [late] = [line.time for line in job.steps(1) if line.step == 3]
    [noticed] = [event["time"] for event in job.events("preemption_notice", rank=1)]
    assert noticed - signalled_at(job) < 1.0
    assert noticed < late + 3.0
    assert stops(job, 2) == {4}


def test_loader_workers_serve_until_the_rank_has_saved_and_are_gone_with_it(ended: Ended) -> None:
    job = ended("workers")
    assert len(stops(job, 2)) == 1
    workers = [int(path.name.partition("-")[2]) for path in job.root.glob("worker-*")]
    assert len(workers) == 4
    wait_for(lambda: not any(map(psutil.pid_exists, workers)), deadline_s=10)


def test_a_loop_without_anything_attached_is_stopped_alike(ended: Ended) -> None:
    job = ended("unattached")
    assert len(stops(job, 2)) == 1
    assert not job.checkpoints.exists()


def test_process_groups_destroyed_inside_the_session_end_the_vote_quietly(ended: Ended) -> None:
    job = ended("dissolved")
    assert job.verdict is not None
    assert job.verdict.reason is Reason.FINISHED
    assert not job.events("vote_lost")


@pytest.fixture
def doomed(tmp_path: Path) -> Iterator[Job]:
    (tmp_path / "nrp").mkdir()
    (tmp_path / "nrp" / "notice-test-0-0").touch()
    job = start(tmp_path, "preempted.py", ranks=2, launcher=shielded, env=UNDER_LAUNCHER)
    with ended_afterwards(job):
        yield job


def test_a_rank_that_is_started_after_the_notice_leaves_without_a_word(doomed: Job) -> None:
    doomed.succeed(40.0)
    assert doomed.verdict is None
    assert not doomed.events()
    assert "nothing is started" in doomed.log
