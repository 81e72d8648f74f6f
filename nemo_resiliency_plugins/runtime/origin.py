"""Which copy of this package a job runs, and which others it could have run."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from nemo_resiliency_plugins.contract import RUNTIME_FILE
from nemo_resiliency_plugins.runtime.log import logger

PACKAGE, DISTRIBUTION = "nemo_resiliency_plugins", "nemo-resiliency-plugins"


@dataclasses.dataclass(frozen=True)
class Copy:
    """``version`` is None for a copy that was not installed, such as a directory on PYTHONPATH."""

    home: Path
    version: str | None

    def __str__(self) -> str:
        return f"{self.version or 'of unknown version'} in {self.home}"


def tell(number: int) -> None:
    """Log the copy that runs on node ``number``, and every other one of another version as a warning."""
    try:
        _tell(number, running_home())
    except (OSError, ValueError, KeyError) as error:
        logger().warning("[node %s] cannot tell which runtime this is: %s", number, error)


def _tell(number: int, home: Path) -> None:
    copies = {copy.home: copy for copy in found()}
    own = copies.pop(home, Copy(home, None))
    how = "shipped with the job" if is_shipped(home) else "installed, not shipped"
    logger().info("[node %s] runtime %s, %s", number, own, how)
    for other in copies.values():
        if other.version != own.version:
            logger().warning("[node %s] runtime %s is there as well and not used: %s is", number, other, own)


def running_home() -> Path:
    """The directory or zip file that this process has imported the package from."""
    return Path(sys.modules[PACKAGE].__file__ or "").parents[1]


def is_shipped(home: Path) -> bool:
    return home.name == RUNTIME_FILE


def found() -> Iterator[Copy]:
    """All copies that Python could import, in the order in which it looks."""
    versions = dict(_installed())
    for entry in [Path(each).absolute() for each in sys.path]:
        if entry in versions or (entry / PACKAGE / "__init__.py").exists():
            yield Copy(entry, versions.pop(entry, None))
    # Editable installs are found by a hook, not by the path.
    yield from (Copy(home, version) for home, version in versions.items())


def _installed() -> Iterator[tuple[Path, str]]:
    for distribution in importlib.metadata.distributions(name=DISTRIBUTION):
        editable = json.loads(distribution.read_text("direct_url.json") or "{}")
        is_editable = editable.get("dir_info", {}).get("editable", False)
        home = urlsplit(editable["url"]).path if is_editable else str(distribution.locate_file(""))
        yield Path(home), distribution.version
