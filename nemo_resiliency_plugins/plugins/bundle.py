"""This package as one zip file for the job, so that neither the image nor the user's repository needs to hold it."""

from __future__ import annotations

import importlib.metadata
import importlib.resources
import zipfile
from pathlib import Path

PACKAGE, DISTRIBUTION = "nemo_resiliency_plugins", "nemo-resiliency-plugins"
ROOMS = (
    *("__init__.py", "errors.py", "contract.py", "evidence.py", "config", "compat", "runtime", "integrations"),
    *("plugins", "slurm", "recipes", "megatron_bridge.py"),
)
"""Ranks and node scripts import the first ones, which need the standard library, torch and NVRx.

The submit side is there for files that define what the job runs and also submit it: they import plugins at their top.
"""
FIXED_TIME = (1980, 1, 1, 0, 0, 0)


def write_runtime_zip(path: Path) -> None:
    """Write the zip; the same source gives the same bytes."""
    version = importlib.metadata.version(DISTRIBUTION)
    # By it the job knows which version was shipped, where another one may be installed as well.
    metadata = f"Metadata-Version: 2.1\nName: {DISTRIBUTION}\nVersion: {version}\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for room in ROOMS:
            # A checkout has the recipes beside the package.
            home = Path(str(importlib.resources.files(PACKAGE if room != "recipes" else f"{PACKAGE}.recipes")))
            place = home / room if room != "recipes" else home
            for file in sorted(place.rglob("*.py")) or [place]:
                name = Path(PACKAGE, room, file.relative_to(place)).as_posix()
                archive.writestr(zipfile.ZipInfo(name, FIXED_TIME), file.read_bytes())
        archive.writestr(zipfile.ZipInfo(f"{PACKAGE}-{version}.dist-info/METADATA", FIXED_TIME), metadata)
