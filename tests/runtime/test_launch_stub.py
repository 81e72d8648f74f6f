"""The stub that ranks start through: what the script sees of it, and the watch beside it."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

from nemo_resiliency_plugins.contract import Attempt, verdict_path
from tests.harness import JOB_ID, LAUNCH, Job, ended_afterwards, json_lines, spawn, wait_for

GONE = """
import json, os, sys
os.chdir("/")
print(json.dumps([__name__, __file__, sys.argv]))
"""
FORKING = """
import json, os
if os.fork() == 0:
    os._exit(7)
print(json.dumps(os.waitstatus_to_exitcode(os.wait()[1])))
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print(json.dumps("no other child"))
"""
SESSION = """
from nemo_resiliency_plugins import runtime
with runtime.session() as session:
    session.finish()
"""
ELSEWHERE = "import os\nos.chdir('elsewhere')\n"
HANGING = "import time\ntime.sleep(600)\n"
WITHOUT_WATCH = """
import contextlib, os, time
import psutil
mine = os.environ["TEST_ROOT"]
others = [each for each in psutil.process_iter(["environ"]) if each.pid != os.getpid()]
[watch] = [each for each in others if (each.info["environ"] or {}).get("TEST_ROOT") == mine]
watch.kill()
with contextlib.suppress(psutil.NoSuchProcess):
    while watch.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
"""
SHORT = {"NRP_FAULT_TOLERANCE__STARTUP_TIMEOUT_S": "1"}


def write(root: Path, name: str, text: str = "") -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def run(root: Path, *command: str, env: dict[str, str] | None = None) -> Job:
    """Run the stub in ``root``, until it ends."""
    job = spawn(root, [sys.executable, *LAUNCH, *command], env or {})
    with ended_afterwards(job):
        job.wait(30.0)
    return job


def printed(job: Job) -> list[Any]:
    assert job.process.returncode == 0, job.log
    return json_lines(job.root / "log.txt")


def test_a_script_given_by_a_relative_path_knows_its_absolute_one(tmp_path: Path) -> None:
    path = write(tmp_path, "code/train.py", GONE)
    assert printed(run(tmp_path, "code/train.py", "x")) == [["__main__", str(path), ["code/train.py", "x"]]]


def test_a_script_that_waits_for_its_children_meets_no_watch(tmp_path: Path) -> None:
    write(tmp_path, "train.py", FORKING)
    job = run(tmp_path, "train.py")
    assert printed(job) == [7, "no other child"]
    wait_for(lambda: job.events("rank_ended"), what="a word of the watch, which was there to meet")


def test_a_package_runs_its_main_module(tmp_path: Path) -> None:
    write(tmp_path, "trainer/__init__.py")
    path = write(tmp_path, "trainer/__main__.py", GONE)
    assert printed(run(tmp_path, "-m", "trainer", "--lr", "0,1")) == [
        ["__main__", str(path), [str(path), "--lr", "0,1"]]
    ]


def test_the_start_of_a_package_is_watched(tmp_path: Path) -> None:
    write(tmp_path, "trainer/__init__.py")
    write(tmp_path, "trainer/__main__.py", HANGING + SESSION)
    job = run(tmp_path, "-m", "trainer", env=SHORT)
    assert job.process.returncode == -signal.SIGKILL
    assert [event["limit_s"] for event in job.events("startup_timeout")] == [1]


def test_a_watch_that_died_is_a_warning_and_no_error(tmp_path: Path) -> None:
    write(tmp_path, "train.py", WITHOUT_WATCH + SESSION)
    job = run(tmp_path, "train.py", env=SHORT)
    assert job.process.returncode == 0, job.log
    assert job.log.count("[WARNING] the watch of this rank's start is gone: imports were not watched") == 1
    assert job.verdict is not None


def test_a_relative_directory_is_that_of_the_start_wherever_the_script_goes(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    write(tmp_path, "train.py", ELSEWHERE + SESSION)
    job = run(tmp_path, "train.py", env={"NRP_DIR": "nrp"})
    assert job.process.returncode == 0, job.log
    assert verdict_path(tmp_path / "nrp", Attempt(JOB_ID)).exists()
    assert {event["event"] for event in job.events()} >= {"rank_started", "session_started", "finished"}
    assert not list((tmp_path / "elsewhere").iterdir())
