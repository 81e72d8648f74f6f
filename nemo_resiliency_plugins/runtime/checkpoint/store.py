"""The directory of checkpoints: which exist, which is newest, and how one comes to be. No tensors here.

Order of a save: data, manifest (the checksums), marker, pointer, each durable before the next. What has no marker is
a leftover. The marker holds the checksum of the manifest, the manifest those of the data.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TypedDict

from nemo_resiliency_plugins.contract import fsync_directory, write_atomically
from nemo_resiliency_plugins.errors import CheckpointError
from nemo_resiliency_plugins.runtime.checkpoint.checksums import Sum, Sums

MANIFEST = "manifest.json"
MARKER = "COMMITTED"
POINTER = "latest"
TRAINING = "training_id"
NAME = re.compile(r"step_(\d{9,})")


class Manifest(TypedDict):
    """What a checkpoint consists of."""

    step: int
    world_size: int
    files: dict[str, Sum]


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

    def leftovers(self) -> list[int]:
        """Steps whose save was cut."""
        return sorted(step for step, path in self._directories() if not (path / MARKER).exists())

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
            if self.pointer() == path.name:
                (self.root / POINTER).unlink()
            # Without its marker first, a half-removed checkpoint cannot be taken for a whole one.
            (path / MARKER).unlink(missing_ok=True)
            shutil.rmtree(path)
        path.mkdir(parents=True)
        return f"{path} was left by a save that did not finish: replaced" if leftover else None

    def discard(self, step: int) -> int:
        """Remove what a failed save has left, which may have filled the disk; returns the MB that were free before.

        torch's writer reports a full disk as an error in its own file format, so the number is part of the message.
        """
        free = shutil.disk_usage(self.root).free
        if not (self.path(step) / MARKER).exists():
            shutil.rmtree(self.path(step), ignore_errors=True)
        return free >> 20

    def commit(
        self, step: int, sums: Sums, *, world_size: int, unreadable: Mapping[int, str] = MappingProxyType({})
    ) -> int:
        """Mark ``step`` as existing, move the pointer, and remove what retention no longer keeps; returns ``step``.

        Args:
            sums: the checksums of all files of the checkpoint, which are durable already.
            unreadable: committed steps that do not count for retention, since nothing can be loaded from them.
        """
        path = self.path(step)
        fsync_directory(path)
        fsync_directory(self.root)
        manifest = json.dumps({"step": step, "world_size": world_size, "files": dict(sums)}, indent=0) + "\n"
        write_atomically(path / MANIFEST, manifest)
        write_atomically(path / MARKER, f"{zlib.crc32(manifest.encode()):08x}\n")
        write_atomically(self.root / POINTER, f"{path.name}\n")
        self._retire({*unreadable} - {step})
        return step

    def pointer(self) -> str | None:
        """The name of the directory that was committed last."""
        path = self.root / POINTER
        return path.read_text().strip() if path.exists() else None

    def training_id(self) -> int:
        """A number of this directory's own: what a node has kept for another one is not taken for ours."""
        path = self.root / TRAINING
        if not path.exists():
            write_atomically(path, f"{secrets.randbits(48)}\n")
        return int(path.read_text())

    def is_whole(self, step: int) -> bool:
        return self._problem(step) is None

    def manifest(self, step: int) -> Manifest:
        """Raises OSError or ValueError when it is not what was written."""
        path = self.path(step)
        text = (path / MANIFEST).read_bytes()
        if (path / MARKER).read_text() != f"{zlib.crc32(text):08x}\n":
            raise ValueError("manifest and marker do not agree")
        manifest: Manifest = json.loads(text)
        if manifest["step"] != step:
            raise ValueError("its marker is that of another checkpoint")
        return manifest

    def _retire(self, unreadable: set[int]) -> None:
        committed = self.committed()
        kept = [step for step in committed if step not in unreadable and self.is_whole(step)][-self._keep :]
        for step in (step for step in committed if kept and step < kept[0]):
            (self.path(step) / MARKER).unlink()
            shutil.rmtree(self.path(step), ignore_errors=True)

    def _problem(self, step: int) -> str | None:
        path = self.path(step)
        try:
            files = self.manifest(step)["files"]
            wrong = [name for name, entry in files.items() if (path / name).stat().st_size != entry["size"]]
        except (OSError, ValueError) as error:
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
            "Restore one, give an empty directory to start from step 0, or set start_over=True."
        )
