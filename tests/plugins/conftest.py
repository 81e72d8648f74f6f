from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import nemo_run as run
import pytest


@pytest.fixture(autouse=True)
def nemorun_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files that a plugin writes go to a directory of the test's own."""
    home = tmp_path / "nemorun"
    monkeypatch.setattr("nemo_resiliency_plugins.plugins.fault_tolerance_local.get_nemorun_home", lambda: str(home))
    return home


@pytest.fixture
def task() -> run.Script:
    return run.Script("train.py", entrypoint="python", args=["--steps", "3"])


@pytest.fixture
def executor(tmp_path: Path) -> run.LocalExecutor:
    return run.LocalExecutor(ntasks_per_node=4, job_dir=str(tmp_path / "job"))


MakeTask = Callable[[], "run.Script | run.Partial"]
