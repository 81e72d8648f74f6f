"""``demo``: what is found before anything is started; ``tests/plugins/test_local_executor.py`` runs it to its end."""

from __future__ import annotations

import subprocess
from pathlib import Path

from typer.testing import CliRunner, Result

from nemo_resiliency_plugins.cli.demo import Training
from nemo_resiliency_plugins.cli.main import app
from nemo_resiliency_plugins.config import FaultScript
from tests import laptop


def refused(directory: Path) -> Result:
    done = CliRunner().invoke(app, ["demo", "--directory", str(directory)])
    assert (done.exit_code, done.output.count("\n")) == (2, 1), done.output
    assert done.output.startswith(f"nemo-resiliency: --directory='{directory}': cannot be written: ")
    assert done.output.endswith(". Name a directory of your own that is new, or holds no demo yet.\n")
    return done


def test_a_directory_that_holds_a_demo_is_refused(tmp_path: Path) -> None:
    earlier = Training(tmp_path / "undisturbed", ranks=2, faults=FaultScript())
    assert f": File exists: {earlier.directory}." in refused(tmp_path).output
    assert not earlier.log.exists()


def test_a_file_and_a_directory_that_cannot_be_made_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert ": Not a directory: " in refused(tmp_path / "file").output
    assert ": No such file or directory." in refused(Path("/proc/x")).output


def test_without_torch_and_nvrx_nothing_is_started(tmp_path: Path) -> None:
    python = laptop.make(tmp_path / "venv")
    main = "from nemo_resiliency_plugins.cli.main import app; app()"
    command = [python, "-c", main, "demo", "--directory", tmp_path / "demo"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    missing = "without torch and nvidia-resiliency-ext it cannot: pip install 'nemo-resiliency-plugins[runtime]'\n"
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"nemo-resiliency: the demo trains here, {missing}"
    assert not (tmp_path / "demo").exists()
