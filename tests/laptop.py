"""A virtual environment with the submit side alone: no torch, no NVRx, nothing that a plain install does not bring."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:  # comes with pytest there
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
NAME = "nemo-resiliency-plugins"
HEAVY = ("torch", "nvidia_resiliency_ext", "numpy")


def make(root: Path) -> Path:
    """The python of a new environment: our package as an install lays it out, and links to what that depends on."""
    venv.create(root, with_pip=False, symlinks=True)
    python = root / "bin" / "python"
    site = Path(_output(python, "import sysconfig; print(sysconfig.get_path('purelib'))"))
    for name in needed():
        for entry in _entries(importlib.metadata.distribution(name)):
            (site / entry.name).exists() or (site / entry.name).symlink_to(entry)
    _install(site)
    for name in HEAVY:
        found = _output(python, f"import importlib.util as it; print(it.find_spec({name!r}))")
        assert found == "None", f"{name} on the laptop: {found}"
    return python


def needed() -> list[str]:
    """The distributions that a plain install of ours brings, without those of the extras."""
    found: dict[str, None] = {}
    left = [(NAME, frozenset({""}))]
    while left:
        name, extras = left.pop()
        if name != NAME:
            found[name] = None
        for text in importlib.metadata.requires(name) or []:
            requirement = Requirement(text)
            wanted = requirement.marker is None or any(requirement.marker.evaluate({"extra": each}) for each in extras)
            required = canonicalize_name(requirement.name)
            if wanted and required not in found:
                left.append((required, frozenset({"", *requirement.extras})))
    return list(found)


def _entries(distribution: importlib.metadata.Distribution) -> Iterator[Path]:
    """What it has put into site-packages."""
    tops = {file.parts[0] for file in distribution.files or [] if file.parts[0] not in ("..", "__pycache__")}
    yield from (Path(str(distribution.locate_file(top))) for top in sorted(tops))


def _install(site: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for package, folder in sorted(project["tool"]["setuptools"]["package-dir"].items()):
        shutil.copytree(ROOT / folder, site.joinpath(*package.split(".")), ignore=shutil.ignore_patterns("__pycache__"))
    metadata = site / f"{NAME.replace('-', '_')}-{importlib.metadata.version(NAME)}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(str(importlib.metadata.distribution(NAME).metadata))


def _output(python: Path, code: str) -> str:
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True, cwd="/")
    return done.stdout.strip()
