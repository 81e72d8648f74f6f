"""The directory of checkpoints: which exist, which is newest, and how one comes to be. No tensors here.

Order of a save: data, marker, pointer, each durable before the next. What has no marker is a leftover.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from nemo_resiliency_plugins.contract import fsync_directory, write_atomically
from nemo_resiliency_plugins.errors import CheckpointError

MARKER = "COMMITTED"
POINTER = "latest"
NAME = re.compile(r"step_(\d{9,})")


class CheckpointStore:
    """Checkpoints ``step_000000100`` and so on below ``root``. Only rank 0 changes anything."""

    def __init__(self, root: Path, *, keep: int) -> None:
        self.root = root
        self._keep = keep

    def path(self, step: int) -> Path:
        return self.root / f"step_{step:09d}"

    def committed(self) -> list[int]:
        """Steps with a marker, oldest first."""
        return sorted(step for step, path in self._directories() if (path / MARKER).exists())

    def newest_whole(self, unreadable: Mapping[int, str] = MappingProxyType({})) -> tuple[int | None, list[str]]:
        """The newest committed step whose files are all there, and what is wrong with each newer one."""
        problems: list[str] = []
        for step in reversed(self.committed()):
            problem = f"{self.path(step)}: {unreadable[step]}" if step in unreadable else self._problem(step)
            if problem is None:
                return step, problems
            problems.append(problem)
        return None, problems

    def prepare(self, step: int) -> str | None:
        """Make room for a save of ``step``; returns a note when a leftover of a cut save was removed."""
        path = self.path(step)
        leftover = path.exists()
        if leftover:
            shutil.rmtree(path)
        path.mkdir(parents=True)
        return f"{path} was left by a save that did not finish: replaced" if leftover else None

    def commit(self, step: int, *, world_size: int) -> int:
        """Mark ``step`` as existing, move the pointer, and remove what retention no longer keeps; returns ``step``."""
        path = self.path(step)
        fsync_directory(path)
        fsync_directory(self.root)
        files = {file.name: file.stat().st_size for file in path.iterdir() if file.is_file()}
        marker = {"step": step, "world_size": world_size, "files": files}
        write_atomically(path / MARKER, json.dumps(marker) + "\n")
        write_atomically(self.root / POINTER, f"{path.name}\n")
        self._retire()
        return step

    def is_whole(self, step: int) -> bool:
        return self._problem(step) is None

    def world_size(self, step: int) -> int:
        return int(json.loads((self.path(step) / MARKER).read_text())["world_size"])

    def _retire(self) -> None:
        committed = self.committed()
        kept = [step for step in committed if self.is_whole(step)][-self._keep :]
        for step in (step for step in committed if kept and step < kept[0]):
            # Without its marker first, a half-removed checkpoint cannot be taken for a whole one.
            (self.path(step) / MARKER).unlink()
            shutil.rmtree(self.path(step), ignore_errors=True)

    def _problem(self, step: int) -> str | None:
        path = self.path(step)
        try:
            marker = json.loads((path / MARKER).read_text())
            if marker["step"] != step or not isinstance(marker["world_size"], int) or marker["world_size"] < 1:
                return f"{path}: its marker is that of another checkpoint"
            sizes: dict[str, int] = marker["files"]
            wrong = [name for name, size in sizes.items() if (path / name).stat().st_size != size]
        except (OSError, ValueError, LookupError, TypeError) as error:
            return f"{path} cannot be read: {error!r}"
        return f"{path}: size of {', '.join(wrong)} has changed since the save" if wrong else None

    def _directories(self) -> Iterator[tuple[int, Path]]:
        if not self.root.is_dir():
            return
        for path in self.root.iterdir():
            match = NAME.fullmatch(path.name)
            if match and path.is_dir():
                yield int(match[1]), path


def require_resumable(root: Path, step: int | None, problems: list[str]) -> None:
    """Starting over where checkpoints were is never a silent choice.

    Raises:
        CheckpointError: nothing can be resumed from, although committed checkpoints are there.
    """
    if step is None and problems:
        raise CheckpointError(
            f"no checkpoint in {root} can be resumed from: {'; '.join(problems)}. "
            "Restore one, or give an empty directory to start from step 0."
        )
