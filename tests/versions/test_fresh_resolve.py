"""A fresh install, with the lowest and with the highest versions that the bounds allow, works."""

from __future__ import annotations

import os
import shutil
import subprocess
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from nemo_resiliency_plugins.cli.main import VERBS
from tests.architecture.test_laptop import SUBMIT
from tests.laptop import ROOT, tomllib
from tests.versions.unpacked import pip

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
INSTALL_S = 600.0
RECIPE = """
import nemo_run as run
from nemo_resiliency_plugins.recipes.own_script import script
from nemo_resiliency_plugins.recipes.plugin_sets import preemptible

def recipe(nodes=2):
    tunnel = run.LocalTunnel(job_dir="/shared/experiments")
    executor = run.SlurmExecutor(account="me", nodes=nodes, packager=run.Packager(), tunnel=tunnel)
    return script("/image/train.py", [], executor=executor, plugins=preemptible())
"""


def lowest() -> list[str]:
    """A constraint for each requirement that has a lower bound, on just that version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = [Requirement(text) for text in project["dependencies"]]
    bounds = {each.name: spec.version for each in requirements for spec in each.specifier if spec.operator == ">="}
    assert bounds.keys() == {each.name for each in requirements}
    return [f"{name}=={version}" for name, version in bounds.items()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("wheel")
    # Not where the sources are: what an earlier build has left there would get into the wheel.
    ignored = shutil.ignore_patterns(".venv", ".git", "build", "*.egg-info", "__pycache__", "tests")
    shutil.copytree(ROOT, root / "source", ignore=ignored)
    pip("wheel", "--no-deps", f"--wheel-dir={root}", str(root / "source"))
    [made] = root.glob("*.whl")
    return made


@pytest.fixture(params=["lowest", "highest"])
def installed(request: pytest.FixtureRequest, wheel: Path, tmp_path: Path) -> Iterator[Path]:
    """The directory with the commands of a new environment."""
    venv.create(tmp_path / "venv", with_pip=True, symlinks=True)
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("\n".join(lowest() if request.param == "lowest" else []))
    bin_directory = tmp_path / "venv" / "bin"
    options = ["--disable-pip-version-check", "--quiet", f"--constraint={constraints}"]
    done(bin_directory / "python", "-m", "pip", "install", *options, wheel, cwd=tmp_path)
    yield bin_directory
    shutil.rmtree(tmp_path / "venv")


def done(*command: object, cwd: Path, code: int = 0) -> str:
    """The output of a command; an error if it ends with another code."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "NRP_", "VIRTUAL_ENV"))}
    env = {**own, "HOME": str(cwd), "NEMORUN_HOME": str(cwd / "home")}
    ended = subprocess.run(
        [*map(str, command)], cwd=cwd, env=env, capture_output=True, text=True, timeout=INSTALL_S, check=False
    )
    assert ended.returncode == code, f"{ended.stdout[-2000:]}\n{ended.stderr[-3000:]}"
    return ended.stdout + ended.stderr


def test_everything_is_imported_submitted_and_shown(installed: Path, tmp_path: Path) -> None:
    said = done(installed / "python", "-c", SUBMIT, cwd=tmp_path)
    assert said.count("# nemo_resiliency_plugins: the retry policy decides") == 2
    ours = installed / "nemo-resiliency"
    (tmp_path / "mine.py").write_text(RECIPE)
    assert "#SBATCH --nodes=3\n" in done(ours, "preview", "mine.py:recipe", "nodes=3", cwd=tmp_path)
    for verb in VERBS:
        assert f"Example: nemo-resiliency {verb}" in " ".join(done(ours, verb, "--help", cwd=tmp_path).split())
    assert "Missing argument" in done(ours, "status", cwd=tmp_path, code=2)
    assert "resiliency" in done(installed / "nemorun", "--help", cwd=tmp_path)
    done(installed / "python", "-m", "pip", "check", cwd=tmp_path)


def test_the_license_is_in_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/licenses/LICENSE")]
        assert archive.read(name) == (ROOT / "LICENSE").read_bytes()
