"""The job side as one zip file, so that neither the image nor the user's repository needs to hold it."""

from __future__ import annotations

import importlib.metadata
import zipfile
from pathlib import Path

PACKAGE, DISTRIBUTION = "nemo_resiliency_plugins", "nemo-resiliency-plugins"
COMPAT = ("__init__.py", "gloo.py", "inprocess.py", "nvrx.py", "nvrx_stragglers.py", "spare_ranks.py")
ROOMS = ("__init__.py", "errors.py", "contract.py", "config", "runtime", *(f"compat/{name}" for name in COMPAT))
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
        version = importlib.metadata.version(DISTRIBUTION)
        # By it the job knows which version was shipped, where another one may be installed as well.
        metadata = f"Metadata-Version: 2.1\nName: {DISTRIBUTION}\nVersion: {version}\n"
        archive.writestr(zipfile.ZipInfo(f"{PACKAGE}-{version}.dist-info/METADATA", FIXED_TIME), metadata)
