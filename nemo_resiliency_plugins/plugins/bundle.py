"""The job side as one zip file, so that neither the image nor the user's repository needs to hold it."""

from __future__ import annotations

import zipfile
from pathlib import Path

PACKAGE = "nemo_resiliency_plugins"
COMPAT = ("__init__.py", "gloo.py", "inprocess.py", "nvrx.py", "nvrx_stragglers.py", "spare_ranks.py")
JOB_SIDE = ("errors.py", "contract.py", "config", "integrations", "runtime")
ROOMS = ("__init__.py", *JOB_SIDE, *(f"compat/{name}" for name in COMPAT))
"""What ranks and node scripts import; it needs the standard library, torch and NVRx."""
FIXED_TIME = (1980, 1, 1, 0, 0, 0)


def write_runtime_zip(path: Path) -> None:
    """Write the zip; the same source gives the same bytes."""
    root = Path(__file__).parents[1]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for room in ROOMS:
            for file in sorted((root / room).rglob("*.py")) or [root / room]:
                name = f"{PACKAGE}/{file.relative_to(root).as_posix()}"
                archive.writestr(zipfile.ZipInfo(name, FIXED_TIME), file.read_bytes())
