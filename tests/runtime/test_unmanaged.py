from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest

from nemo_resiliency_plugins.contract import encode_arguments
from tests.harness import LAUNCH, SCRIPTS, Job, ended_afterwards, python, run, spawn, start_alone, torchrun

IMPORTED = """
import sys
import nemo_resiliency_plugins.runtime
print([name for name in ("torch", "nemo_run", "nvidia_resiliency_ext", "numpy") if name in sys.modules])
"""
LINGERING = """
import sys, threading, time
from nemo_resiliency_plugins.runtime import launch
launch.EXIT_GRACE_S = 0.5
open("lingering.py", "w").write(
    "import threading, time\\nthreading.Thread(target=time.sleep, args=(600,)).start()\\nraise KeyError('gone')\\n"
)
launch.main(["--", "lingering.py"])
"""
SHORT = {"NRP_FAULT_TOLERANCE__STARTUP_TIMEOUT_S": "1"}
AWKWARD = ["--log", "a b", "", "%41", "$HOME", "'quoted'", "ü"]


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Job:
    return run(tmp_path_factory.mktemp("asking"), "asking.py", ranks=2, launcher=torchrun, env={})


def alone(root: Path, script: str, *arguments: str, env: dict[str, str]) -> Job:
    job = start_alone(root, script, *arguments, env=env)
    with ended_afterwards(job):
        job.wait(30.0)
    return job


def test_importing_the_runtime_loads_nothing_heavy() -> None:
    assert python(IMPORTED).strip() == "[]"


def test_without_a_launcher_the_session_says_once_that_it_watches_nothing(tmp_path: Path) -> None:
    job = alone(tmp_path, "loop.py", env={})
    assert job.process.returncode == 0
    assert job.log.count("watches nothing") == 1
    assert job.said() == [(0, "done")]


def test_under_torchrun_the_warning_names_reason_and_remedy_on_rank_0(asking: Job) -> None:
    warnings = [line for line in asking.log.splitlines() if "hangs are not detected" in line]
    assert len(warnings) == 1
    for part in ("[WARNING]", "rank 0", "FT_RANK_MONITOR_IPC_SOCKET is not set", "Start the ranks with ft_launcher"):
        assert part in warnings[0]


def test_under_torchrun_a_strict_session_is_refused_on_every_rank(asking: Job) -> None:
    for rank in (0, 1):
        refused, opened = asking.said(rank)
        assert refused[1].startswith("refused: fault tolerance was asked for, but hangs are not detected")
        assert opened == (0, "session")


def test_what_does_not_work_is_an_event(asking: Job) -> None:
    assert {event["feature"] for event in asking.events("not_working")} == {"hang detection"}


def test_a_hang_before_the_session_is_killed_after_the_startup_timeout(tmp_path: Path) -> None:
    job = alone(tmp_path, "hanging_import.py", env=SHORT)
    assert job.process.returncode == -signal.SIGKILL
    assert [event["limit_s"] for event in job.events("startup_timeout")] == [1]
    assert "did not reach its session within 1 s" in job.log


def test_a_script_without_a_session_is_never_killed_by_it(tmp_path: Path) -> None:
    job = alone(tmp_path, "plain.py", env=SHORT)
    assert job.process.returncode == 0
    assert not job.events("startup_timeout")


def test_a_session_in_time_outlives_the_startup_timeout(tmp_path: Path) -> None:
    job = alone(tmp_path, "loop.py", "--step-s", "0.2", env=SHORT)
    assert job.process.returncode == 0
    assert not job.events("startup_timeout")


def test_arguments_arrive_as_they_were_given(tmp_path: Path) -> None:
    command = [sys.executable, *LAUNCH[:2], *encode_arguments([str(SCRIPTS / "plain.py"), *AWKWARD])]
    job = spawn(tmp_path, command, {})
    with ended_afterwards(job):
        job.succeed()
    assert json.loads(job.log) == AWKWARD


def test_threads_do_not_hold_a_failed_rank_for_ever(tmp_path: Path) -> None:
    job = spawn(tmp_path, [sys.executable, "-c", LINGERING], {})
    with ended_afterwards(job):
        assert job.wait(20.0) == 1
    assert [(event["exception"], event["message"]) for event in job.events("rank_failed")] == [("KeyError", "'gone'")]
