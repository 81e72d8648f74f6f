"""What is called missing at submission is missing in the job, and what is accepted is there."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nemo_run as run
import pytest

from nemo_resiliency_plugins import PreemptionPlugin, UnsupportedError
from tests.harness import clean_env
from tests.plugins.slurm import make
from tests.slurm.submitting import Submitted, submit
from tests.slurm.testbed import Cluster

MODULE = "def train():\n    print('came', 'here')\n\nif __name__ == '__main__':\n    train()\n"
LAUNCHING = """
import sys
import nemo_run as run
from nemo_resiliency_plugins import PreemptionPlugin

def train():
    print("came", "here")

if __name__ == "__main__":
    tunnel = run.LocalTunnel(job_dir=f"{sys.argv[1]}/experiments")
    executor = run.SlurmExecutor(account="root", tunnel=tunnel, poll_estimated_start_time=False)
    with run.Experiment("main", base_dir=sys.argv[1]) as experiment:
        experiment.add(run.Partial(train), executor=executor, plugins=[PreemptionPlugin()], name="task")
        experiment.run(detach=True)
        [job] = experiment.jobs
        print("submitted", job.handle.rpartition("/")[2])
"""


def script(path: str, **fields: Any) -> run.Script:
    return run.Script(path, entrypoint="python", **fields)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory is a repository: ``committed.py`` and ``pkg.inner`` are in it, ``fresh.py`` is not."""
    root = tmp_path / "project"
    (root / "pkg").mkdir(parents=True)
    for name in ("committed.py", "pkg/inner.py"):
        (root / name).write_text(MODULE)
    (root / "launch.py").write_text(LAUNCHING)
    (root / "pkg" / "__init__.py").write_text("")
    git = ["git", "-c", "user.name=me", "-c", "user.email=me@here"]
    for command in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message=x"]):
        subprocess.run([*git, *command], cwd=root, check=True)
    (root / "fresh.py").write_text(MODULE)
    monkeypatch.chdir(root)
    monkeypatch.syspath_prepend(root)
    yield root
    for name in ("committed", "fresh", "pkg", "pkg.inner"):
        sys.modules.pop(name, None)


def submitted(cluster: Cluster, root: Path, task: Any, *plugins: PreemptionPlugin) -> Submitted:
    return submit(cluster, root / "run", task, plugins, packager=run.GitArchivePackager())


def preview(root: Path, task: Any) -> str:
    return PreemptionPlugin().preview(task, make(root, packager=run.GitArchivePackager()))


def test_a_refused_script_is_not_there(cluster: Cluster, tmp_path: Path, project: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"fresh.py.*Commit"):
        submitted(cluster, tmp_path, script("fresh.py"), PreemptionPlugin())
    job = submitted(cluster, tmp_path, script("fresh.py"))
    assert job.ended()[0] == "FAILED"
    assert "can't open file" in job.log


@pytest.mark.slow
def test_a_module_that_is_warned_about_is_not_there(cluster: Cluster, tmp_path: Path, project: Path) -> None:
    importlib.invalidate_caches()
    task = run.Partial(importlib.import_module("fresh").train)
    assert "the function's module fresh (" in preview(tmp_path, task)
    job = submitted(cluster, tmp_path, task, PreemptionPlugin())
    assert job.ended()[0] == "FAILED"
    assert "No module named 'fresh'" in job.log


@pytest.mark.parametrize(
    "what", ["script", *(pytest.param(each, marks=pytest.mark.slow) for each in ("module", "function"))]
)
def test_what_is_accepted_is_there(cluster: Cluster, tmp_path: Path, project: Path, what: str) -> None:
    importlib.invalidate_caches()
    tasks = {
        "script": script("committed.py"),
        "module": script("pkg.inner", m=True),
        "function": run.Partial(importlib.import_module("pkg.inner").train),
    }
    assert "is not among" not in preview(tmp_path, tasks[what])
    job = submitted(cluster, tmp_path, tasks[what], PreemptionPlugin())
    assert job.ended() == ("COMPLETED", "0:0"), job.log
    assert "came here" in job.log


@pytest.mark.slow
def test_a_function_of_the_launching_file_runs(cluster: Cluster, tmp_path: Path, project: Path) -> None:
    home = tmp_path / "home"
    done = subprocess.run(
        [sys.executable, "launch.py", str(home)],
        env={**clean_env({}), **cluster.variables},
        cwd=project,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    [job_id] = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("submitted ")]
    [state] = [row["State"] for row in cluster.wait_for_end(job_id)]
    log = "".join(path.read_text() for path in home.rglob("*.out"))
    assert state == "COMPLETED", log
    assert "came here" in log
