from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nemo_run as run
import pytest

from nemo_resiliency_plugins import FaultTolerancePlugin
from tests.plugins.projects import Project, Told
from tests.plugins.slurm import make


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


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    root = tmp_path / "project"
    root.mkdir()
    made = Project(root)
    made.git("init", "--quiet")
    monkeypatch.chdir(root)
    monkeypatch.syspath_prepend(root)
    yield made
    for name in [name for name, module in sys.modules.items() if _is_below(module, tmp_path)]:
        del sys.modules[name]


def _is_below(module: Any, root: Path) -> bool:
    return str(getattr(module, "__file__", None) or "").startswith(str(root))


@pytest.fixture
def warnings(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Told:
    """What is said about a task aloud; an error if it is refused."""

    def told(task: run.Script | run.Partial, packager: run.Packager | None = None, **fields: Any) -> list[str]:
        caplog.clear()
        executor = make(tmp_path, packager=packager or run.GitArchivePackager(), **fields)
        FaultTolerancePlugin().setup(task, executor)
        return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]

    return told
