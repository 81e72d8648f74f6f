"""What an install puts on the machine, as opposed to an editable one, which finds everything."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:  # comes with pytest there
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
TOP = {
    "nemo_resiliency_plugins": "nemo_resiliency_plugins",
    "recipes": "nemo_resiliency_plugins.recipes",
    "slurm_templates": "nemo_resiliency_plugins.slurm_templates",
}


def packages() -> Iterator[str]:
    for folder, name in TOP.items():
        for init in (ROOT / folder).rglob("__init__.py"):
            yield ".".join([name, *init.parent.relative_to(ROOT / folder).parts])


def test_every_package_is_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert sorted(project["tool"]["setuptools"]["packages"]) == sorted(packages())
