"""Functions that the job could not import are found at submission: NeMo-Run ships names, not code."""

from __future__ import annotations

import dataclasses
import json
import sys
import types
from pathlib import Path

import nemo_run as run
import pytest

from nemo_resiliency_plugins import FaultTolerancePlugin, UnsupportedError
from tests.plugins.projects import Project, Told, pattern, train_of
from tests.plugins.slurm import make


def test_a_function_of_a_shipped_module_works(project: Project, warnings: Told) -> None:
    project.commit("good.py", "pkg/__init__.py", "pkg/inner.py")
    assert warnings(run.Partial(train_of("good"))) == []
    assert warnings(run.Partial(train_of("pkg.inner"))) == []
    assert warnings(run.Partial(train_of("good")), pattern(project, "*.py")) == []


def test_a_function_of_an_untracked_module_is_told(project: Project, warnings: Told) -> None:
    project.commit("good.py")
    project.write("fresh.py")
    said = warnings(run.Partial(train_of("fresh")))
    assert "the function's module fresh (" in said[0]
    assert "unless it is installed where the job runs, the import will fail. Commit fresh.py" in said[0]
    [said_of_config] = [
        text for text in warnings(run.Partial(dict, model=run.Config(train_of("fresh")))) if "module" in text
    ]
    assert "fresh" in said_of_config


def test_a_function_from_outside_of_the_repository_is_told(
    project: Project, warnings: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.commit("good.py")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "outside.py").write_text("def train():\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    [said] = warnings(run.Partial(train_of("outside")))
    assert "the function's module outside (" in said


def test_a_source_directory_is_found_by_the_jobs_path(
    project: Project, warnings: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.commit("src/deep.py")
    monkeypatch.syspath_prepend(project.root / "src")
    [said] = warnings(run.Partial(train_of("deep")))
    assert "the function's module deep (" in said
    for path in ("/nemo_run/code/src", "src:/opt/x"):
        assert warnings(run.Partial(train_of("deep")), env_vars={"PYTHONPATH": path}) == []


def test_an_installed_function_is_a_note(project: Project, warnings: Told, tmp_path: Path) -> None:
    project.commit("good.py")
    task = run.Partial(pytest.main)
    assert warnings(task) == []
    executor = make(tmp_path, packager=run.GitArchivePackager())
    preview = FaultTolerancePlugin().preview(task, executor)
    assert "note: the job has to have _pytest.config installed, as this machine has" in preview
    assert "installed" not in FaultTolerancePlugin().preview(run.Partial(json.dumps), executor)


def test_a_function_without_a_name_is_refused(project: Project, warnings: Told) -> None:
    project.commit("good.py")

    def inner() -> None:
        pass

    for function in (inner, lambda: None):
        with pytest.raises(UnsupportedError, match=r"no name by which the job could import it.*top level of a module"):
            warnings(run.Partial(function))


@dataclasses.dataclass
class LaunchingFile:
    """Stands in for ``__main__``; ``train`` is defined there."""

    path: Path
    monkeypatch: pytest.MonkeyPatch

    def task(self, text: str) -> run.Partial:
        self.path.write_text(text)
        module = types.ModuleType("__main__")
        module.__file__ = str(self.path)
        exec(compile(text, self.path, "exec"), module.__dict__)
        self.monkeypatch.setitem(sys.modules, "__main__", module)
        return run.Partial(module.train)


@pytest.fixture
def launching(project: Project, monkeypatch: pytest.MonkeyPatch) -> LaunchingFile:
    return LaunchingFile(project.root / "launch.py", monkeypatch)


GUARDED = "def train():\n    pass\n\nif __name__ == '__main__':\n    pass\n"


def test_a_function_of_the_launching_file_works_where_the_job_sees_that_file(
    launching: LaunchingFile, project: Project, warnings: Told
) -> None:
    project.commit("good.py")
    (project.root / ".git" / "info" / "exclude").write_text("launch.py\n")
    task = launching.task(GUARDED.replace("__name__ ==", "__name__=="))
    assert warnings(task) == []
    with pytest.raises(UnsupportedError, match=r"train.*launching file.*Move it to a module"):
        warnings(task, container_image="image")


def test_a_launching_file_that_would_submit_again_is_refused(
    launching: LaunchingFile, project: Project, warnings: Told
) -> None:
    project.commit("good.py")
    task = launching.task("def train():\n    pass\n")
    with pytest.raises(UnsupportedError, match=r"it would submit once more. Submit below"):
        warnings(task)
    launching.path.unlink()
    with pytest.raises(UnsupportedError, match=r"which the job cannot import"):
        warnings(task)
