"""Where only the submit side is installed, everything can be imported and submitted."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests import laptop

SUBMIT = """
import importlib, pkgutil, sys
import nemo_run as run
import nemo_resiliency_plugins as package

for name in dir(package):
    getattr(package, name)
for room in ("plugins", "slurm", "cli", "recipes", "slurm_templates"):
    path = importlib.import_module(f"nemo_resiliency_plugins.{room}").__path__
    for found in pkgutil.iter_modules(path, f"nemo_resiliency_plugins.{room}."):
        importlib.import_module(found.name)

task = run.Script("/image/train.py", entrypoint="python", args=["--steps", "9"])
both = [package.PreemptionPlugin(), package.CheckpointPlugin(async_save=True), package.StragglerPlugin()]
both.append(package.RerunStateMachinePlugin())
for restarting in (package.FaultTolerancePlugin(), package.InProcessRestartPlugin()):
    tunnel = run.SSHTunnel(host="login", user="me", job_dir="/cluster/experiments")
    executor = run.SlurmExecutor(account="a", nodes=2, ntasks_per_node=4, tunnel=tunnel, packager=run.Packager())
    with run.Experiment("dry") as experiment:
        experiment.add(task, executor=executor, plugins=[restarting, *both], name="task")
        experiment.dryrun()
print("loaded", *{name.partition(".")[0] for name in sys.modules})
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return laptop.make(tmp_path_factory.mktemp("laptop") / "venv")


def output(python: Path, cwd: Path, *arguments: str) -> str:
    env = {"HOME": str(cwd), "PATH": "/usr/bin:/bin", "COLUMNS": "200"}
    done = subprocess.run(
        [str(python), *arguments],
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_all_plugins_are_imported_and_submitted_without_torch_and_nvrx(python: Path, tmp_path: Path) -> None:
    said = output(python, tmp_path, "-c", SUBMIT)
    assert said.count("# nemo_resiliency_plugins: the retry policy decides") == 2
    loaded = set(said.rpartition("loaded ")[2].split())
    assert "nemo_run" in loaded
    assert not loaded & {"torch", "nvidia_resiliency_ext", "numpy"}


def test_the_command_line_works(python: Path, tmp_path: Path) -> None:
    main = ["-c", "from nemo_resiliency_plugins.cli.main import app; app()"]
    command = ["sbatch", "fault-tolerance", "--directory", "/d", "--", "python", "train.py"]
    assert output(python, tmp_path, *main, *command).startswith("#!/bin/bash\n")
