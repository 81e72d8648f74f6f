"""FaultTolerancePlugin on LocalExecutor, with the processes that NeMo-Run starts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nemo_run as run
import pytest

from nemo_resiliency_plugins import FaultTolerancePlugin
from tests.harness import BIN, SCRIPTS, clean_env
from tests.scripts.show import show
from tests.submission import submission

ROOT = Path(__file__).parents[2]
ODD = [
    "sp ace",
    "--log",
    "$HOME",
    "${X}",
    "a;b",
    "*",
    "it's",
    '"q"',
    "#c",
    "",
    "%20",
    "0,1,2",
    "x={a,b}",
    "ä",
    "--",
    "-m",
]


def shown(task: run.Script | run.Partial, directory: Path, **env: str) -> dict[str, Any]:
    """Submit ``task``, run what NeMo-Run would start, and read what the rank was given."""
    path = directory / "shown.json"
    executor = run.LocalExecutor(ntasks_per_node=1, env_vars={"SHOWN": str(path), **env})
    started = submission(task, executor, [FaultTolerancePlugin()], directory)
    variables = clean_env({**started.env, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)})
    done = subprocess.run(started.command, env=variables, capture_output=True, text=True, timeout=120, cwd=directory)
    assert done.returncode == 0, done.stderr[-4000:]
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def test_arguments_reach_a_script_byte_for_byte(tmp_path: Path) -> None:
    task = run.Script(str(SCRIPTS / "show.py"), entrypoint="python", args=list(ODD))
    assert shown(task, tmp_path)["arguments"] == ODD


def test_arguments_reach_a_module_byte_for_byte(tmp_path: Path) -> None:
    task = run.Script("tests.scripts.show", m=True, entrypoint="python", args=list(ODD))
    assert shown(task, tmp_path)["arguments"] == ODD


def test_another_interpreter_is_started_as_the_user_wrote_it(tmp_path: Path) -> None:
    task = run.Script(str(SCRIPTS / "show.py"), entrypoint=f"{sys.executable} -B", args=list(ODD))
    assert shown(task, tmp_path)["arguments"] == ODD


def test_a_bash_script_is_started_as_the_user_wrote_it(tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(f'{sys.executable} {SCRIPTS / "show.py"} "$@"\n')
    assert shown(run.Script(str(script), args=list(ODD)), tmp_path)["arguments"] == ODD


def test_an_inline_script_runs_under_the_launcher(tmp_path: Path) -> None:
    task = run.Script(inline=f"{sys.executable} {SCRIPTS / 'show.py'} inline")
    content = shown(task, tmp_path)
    assert content["arguments"] == ["inline"]
    assert "FT_RANK_MONITOR_IPC_SOCKET" in content["env"]


def test_a_partial_runs_under_the_launcher(tmp_path: Path) -> None:
    content = shown(run.Partial(show, value="given"), tmp_path)
    assert content["value"] == "given"
    assert content["env"]["NRP_FAULT_TOLERANCE__ENABLE_FT_PACKAGE"] == "true"


def test_values_of_variables_arrive_byte_for_byte(tmp_path: Path) -> None:
    odd = "a$$b ${HOME} 'x' \"y\";*#,="
    content = shown(run.Script(str(SCRIPTS / "show.py"), entrypoint="python"), tmp_path, ODD_VALUE=odd)
    assert content["env"]["ODD_VALUE"] == odd


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_demo_holds_with_four_ranks(tmp_path: Path) -> None:
    directory = tmp_path / "demo"
    command = [str(BIN / "nemo-resiliency"), "demo", "--ranks", "4", "--directory", str(directory)]
    done = subprocess.run(command, env=clean_env({}), capture_output=True, text=True, timeout=380)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "final weights identical to the undisturbed run: yes" in done.stdout
    assert re.search(r"kill\D+1\D+23\D+\d+\.\d s\D+\d+\.\d s\D+3 ", done.stdout)
    assert re.search(r"hang\D+0\D+42\D+\d+\.\d s\D+\d+\.\d s\D+2 ", done.stdout)
