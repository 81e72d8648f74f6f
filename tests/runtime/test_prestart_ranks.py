"""Ranks of a restart that were started ahead, under a real ft_launcher."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from nemo_resiliency_plugins.runtime.prestart.waiting import NAME
from tests.harness import ENABLED, SCRIPTS, Job, ended_afterwards, ft_launcher, run, start, wait_for
from tests.runtime.conftest import Jobs

pytestmark = pytest.mark.slow
RANKS, HELD_AT = 2, 6
STEPS = ("--steps", "12", "--every", "4", "--hold-at", str(HELD_AT))
GPU_USER = """
from pathlib import Path
import torch
if Path("/proc/self/comm").read_text().strip() == "nrp-prestarting":
    torch.cuda.is_initialized = lambda: True
"""
WITH_IT = """
import runpy
import gpu_user
from nemo_resiliency_plugins import runtime
runpy.run_path("{trainer}", run_name="__main__")
"""


def prestarting(ranks: int, restarts: int, packages: str = "torch,numpy,nvidia_resiliency_ext") -> list[str]:
    own = ["-m", "nemo_resiliency_plugins.runtime.launcher", f"--prestart={packages}"]
    return [sys.executable, *own, *ft_launcher(ranks, restarts)]


def family(job: Job) -> list[psutil.Process]:
    return psutil.Process(job.process.pid).children(recursive=True)


def waiting(job: Job) -> list[psutil.Process]:
    return [process for process in family(job) if process.name() == NAME]


@contextmanager
def held(root: Path, **options: Any) -> Iterator[Job]:
    """A job whose ranks wait in a step, and whose next ranks wait as well."""
    job = start(root, "trainer.py", *STEPS, ranks=RANKS, restarts=3, **{"launcher": prestarting, **options})
    with ended_afterwards(job):
        wait_for(lambda: len(waiting(job)) == RANKS, deadline_s=60, what="processes that wait")
        (root / "go").touch()
        yield job


def kill_rank(job: Job, rank: int = 1) -> None:
    [started] = job.events("rank_started", rank=rank)
    os.kill(started["pid"], signal.SIGKILL)


def killed(root: Path) -> Job:
    with held(root) as job:
        found = [process.cmdline() for process in family(job) if process.name() == NAME]
        assert not [words for words in found if "trainer.py" in " ".join(words)], found
        kill_rank(job)
        return job.succeed()


def killed_while_waiting(root: Path) -> Job:
    with held(root) as job:
        [first, _] = waiting(job)
        first.kill()
        kill_rank(job)
        return job.succeed()


def killed_launcher(root: Path) -> list[psutil.Process]:
    with held(root) as job:
        there = waiting(job)
        others = [process for process in family(job) if process not in there]
        job.process.kill()
        psutil.wait_procs(there, timeout=10)
        for process in others:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        return [process for process in there if process.is_running()]


def using_a_gpu(root: Path) -> Job:
    """A package of the script's claims a GPU as it is loaded."""
    (root / "site").mkdir(parents=True)
    (root / "site" / "gpu_user.py").write_text(GPU_USER)
    (root / "script.py").write_text(WITH_IT.format(trainer=SCRIPTS / "trainer.py"))
    env = {**ENABLED, "PYTHONPATH": f"{root / 'site'}:{SCRIPTS}"}
    launcher = partial(prestarting, packages="torch,gpu_user")
    job = start(root, str(root / "script.py"), *STEPS, ranks=RANKS, restarts=3, launcher=launcher, env=env)
    with ended_afterwards(job):
        wait_for(lambda: "is not started ahead" in job.log, deadline_s=60, what="the word of a process that gives up")
        wait_for(lambda: not waiting(job), what="its end")
        (root / "go").touch()
        kill_rank(job)
        return job.succeed()


def undisturbed(root: Path) -> Job:
    root.mkdir(parents=True)
    (root / "go").touch()
    return run(root, "trainer.py", STEPS, ranks=RANKS)


JOBS: dict[str, Callable[[Path], Any]] = {
    "killed": killed,
    "killed_while_waiting": killed_while_waiting,
    "killed_launcher": killed_launcher,
    "using_a_gpu": using_a_gpu,
    "undisturbed": undisturbed,
}


def started_ahead(job: Job, cycle: int) -> list[bool]:
    return sorted(event["prestarted"] for event in job.events("rank_started") if event["cycle"] == cycle)


def test_a_restart_takes_the_processes_that_wait_and_no_bit_of_the_result_differs(jobs: Jobs) -> None:
    job = jobs["killed"].result()
    assert started_ahead(job, 0) == [False, False]
    assert started_ahead(job, 1) == [True, True]
    assert job.result() == jobs["undisturbed"].result().result()


def test_where_no_process_waits_the_launcher_starts_one(jobs: Jobs) -> None:
    job = jobs["killed_while_waiting"].result()
    assert started_ahead(job, 1) == [False, True]
    assert job.result() == jobs["undisturbed"].result().result()


def test_no_process_outlives_its_launcher(jobs: Jobs) -> None:
    assert jobs["killed_launcher"].result() == []
    ended = {event["pid"] for event in jobs["killed"].result().events("rank_started")}
    assert not [pid for pid in ended if psutil.pid_exists(pid)]


def test_a_process_whose_imports_use_the_gpu_gives_up(jobs: Jobs) -> None:
    job = jobs["using_a_gpu"].result()
    assert started_ahead(job, 1) == [False, False]
    assert job.result() == jobs["undisturbed"].result().result()
