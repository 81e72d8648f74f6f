"""The README is true: its blocks run, its tables are those of the code."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nemo_resiliency_plugins import (
    CheckpointPlugin,
    FaultTolerancePlugin,
    InProcessRestartPlugin,
    PreemptionPlugin,
    RerunStateMachinePlugin,
    StragglerPlugin,
)
from nemo_resiliency_plugins.contract import read_events
from tests.harness import BIN, clean_env

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, flags=re.DOTALL)


def named_block(name: str) -> str:
    [block] = [block for block in blocks("python") if block.startswith(f"# {name}\n")]
    return block


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    for name in ("train.py", "submit.py"):
        (tmp_path / name).write_text(named_block(name))
    return tmp_path


def run_in(directory: Path, command: list[str]) -> str:
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    env = clean_env({"PATH": path, "NEMORUN_HOME": str(directory / "home"), "NRP_DIR": str(directory / "nrp")})
    done = subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout + done.stderr


def events(directory: Path, name: str) -> list[dict[str, Any]]:
    found = (event for path in directory.rglob("nrp") for event in read_events(path))
    return [event for event in found if event["event"] == name]


def test_the_example_survives_its_fault(scripts: Path) -> None:
    preview = run_in(scripts, [sys.executable, "submit.py"])
    assert "NRP_FAULT_TOLERANCE__FAULT_SCRIPT=kill@1:30" in preview
    assert events(scripts, "finished")
    [killed] = events(scripts, "fault_injected")
    assert (killed["kind"], killed["rank"], killed["step"]) == ("kill", 1, 30)


def guide() -> dict[str, str]:
    """What to look for, by the check of Megatron-Bridge's guide."""
    [section] = re.findall(r"^## For readers of .*?^## ", TEXT, flags=re.MULTILINE | re.DOTALL)
    return {there: look for there, _, look in re.findall(r"^\| (.+) \| (.+) \| (.+) \|$", section, flags=re.MULTILINE)}


def assert_said(log: str, check: str) -> None:
    for text in re.findall(r"`([^`]+)`", guide()[check]):
        assert text in log, log[-6000:]


def test_the_launcher_command_runs_and_says_what_to_look_for(scripts: Path) -> None:
    [command] = [block for block in blocks("bash") if "ft_launcher" in block]
    exports = sorted(set(re.findall(r"`(export NRP_(?:FAULT_TOLERANCE|CHECKPOINT)__[^`]+)`", TEXT)))
    assert len(exports) == 2
    log = run_in(scripts, ["bash", "-ec", "\n".join([*exports, command])])
    assert events(scripts, "finished")
    for check in ("`run_fault_tolerance.sh`", "`run_fault_tolerance.sh --simulate-fault`", "asynchronous checkpoints"):
        assert_said(log, check)
    assert log.count("section timeouts: setup=600 s") == 2
    assert [event["step"] for event in events(scripts, "resumed") if event["rank"] == 0 and event["step"]]


def test_the_straggler_command_reports(scripts: Path) -> None:
    [command] = [block for block in blocks("bash") if "NRP_STRAGGLER__ENABLED" in block]
    assert_said(run_in(scripts, ["bash", "-ec", command]), "`straggler_detection_example.py`")
    [report] = [event for event in events(scripts, "straggler_report") if event["rank"] == 0]
    assert report["absent"] == dict.fromkeys(("gpu_relative", "gpu_individual"), "there is no GPU")
    assert set(report["scores"]) == {"host_relative", "host_individual"}


def test_every_python_block_compiles() -> None:
    for block in blocks("python"):
        compile(block, "README.md", "exec")


def test_at_most_eight_lines_of_the_script_are_ours() -> None:
    script = named_block("train.py").splitlines()
    ours = [line for line in script if "# nrp" in line]
    assert len(ours) <= 8
    assert all(line in ours for line in script if "session" in line or "nemo_resiliency_plugins" in line)


@pytest.mark.parametrize(
    "plugin",
    [
        FaultTolerancePlugin,
        PreemptionPlugin,
        CheckpointPlugin,
        StragglerPlugin,
        InProcessRestartPlugin,
        RerunStateMachinePlugin,
    ],
    ids=lambda plugin: plugin.__name__,
)
def test_the_parameter_table_is_that_of_the_plugin(plugin: type) -> None:
    [section] = re.findall(rf"^## {plugin.__name__}\n(.*?)^## ", TEXT, flags=re.MULTILINE | re.DOTALL)
    rows = dict(re.findall(r"^\| `(\w+)` \| `([^`]*)` \|", section, flags=re.MULTILINE))
    defaults = {}
    for field in dataclasses.fields(plugin):
        if field.init:
            made = field.default_factory() if field.default is dataclasses.MISSING else field.default  # type: ignore[misc]
            defaults[field.name] = repr(made)
    assert rows == defaults


def test_the_commands_are_targets_of_the_makefile() -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert set(re.findall(r"(?:`|    )make ([\w-]+)", TEXT)) <= set(targets)
