"""The job says which copy of this package it runs, and which others of another version are there."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_resiliency_plugins.plugins.bundle import write_runtime_zip

VERSION = importlib.metadata.version("nemo-resiliency-plugins")
TELL = "from nemo_resiliency_plugins.runtime.origin import tell; tell(3)"


def install(site: Path, version: str | None, name: str = "nemo_resiliency_plugins") -> Path:
    """A copy of the package; with a version it is an installed one."""
    (site / name).mkdir(parents=True)
    (site / name / "__init__.py").write_text("")
    if version is not None:
        metadata = site / f"nemo_resiliency_plugins-{version}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: nemo-resiliency-plugins\nVersion: {version}\n"
        )
    return site


def told(*path: Path, cwd: Path) -> list[str]:
    """What a process says that finds its packages on ``path`` alone."""
    env = {"PYTHONPATH": ":".join(map(str, path)), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-S", "-c", TELL], env=env, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [line.partition("] ")[2] for line in done.stderr.splitlines()]


@pytest.fixture
def shipped(tmp_path: Path) -> Path:
    path = tmp_path / "nrp" / "runtime.zip"
    path.parent.mkdir()
    write_runtime_zip(path)
    return path


def test_the_shipped_runtime_is_the_only_one(shipped: Path, tmp_path: Path) -> None:
    assert told(shipped, cwd=tmp_path) == [f"[INFO] [node 3] runtime {VERSION} in {shipped}, shipped with the job"]


def test_an_older_copy_in_the_image_is_a_warning(shipped: Path, tmp_path: Path) -> None:
    older = install(tmp_path / "site-packages", "0.0.9")
    lines = told(shipped, older, cwd=tmp_path)
    assert lines[1:] == [
        f"[WARNING] [node 3] runtime 0.0.9 in {older} is there as well and not used: {VERSION} in {shipped} is"
    ]


def test_the_same_version_in_the_image_is_no_news(shipped: Path, tmp_path: Path) -> None:
    assert len(told(shipped, install(tmp_path / "site-packages", VERSION), cwd=tmp_path)) == 1


def test_a_copy_that_was_not_installed_is_a_warning(shipped: Path, tmp_path: Path) -> None:
    copy = install(tmp_path / "checkout", None)
    assert f"of unknown version in {copy} is there as well" in told(shipped, copy, cwd=tmp_path)[1]


def test_an_editable_install_is_named_by_its_source(shipped: Path, tmp_path: Path) -> None:
    site = install(tmp_path / "site-packages", "0.0.9", name="other")
    [metadata] = site.glob("*.dist-info")
    (metadata / "direct_url.json").write_text('{"url": "file:///src/ours", "dir_info": {"editable": true}}')
    assert "runtime 0.0.9 in /src/ours is there as well" in told(shipped, site, cwd=tmp_path)[1]


def test_what_cannot_be_read_does_not_end_the_job(shipped: Path, tmp_path: Path) -> None:
    site = install(tmp_path / "site-packages", "0.0.9")
    [metadata] = site.glob("*.dist-info")
    (metadata / "direct_url.json").write_text("{")
    assert "cannot tell which runtime this is" in told(shipped, site, cwd=tmp_path)[0]
