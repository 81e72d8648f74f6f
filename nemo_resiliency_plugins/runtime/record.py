"""What a rank is doing, kept in a small file that outlives a SIGKILL and tells the next start how this one ended."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from pathlib import Path

from nemo_resiliency_plugins.contract import rank_record_path
from nemo_resiliency_plugins.evidence import Sign
from nemo_resiliency_plugins.runtime.log import logger

WOKEN_S = 1.0
"""A monitor wakes a stopped rank (SIGCONT) right before it kills it; what the rank does then is no recovery."""
SLOT = 512
"""Bytes of each of the two lines: what the rank says of itself, and when its watch saw it end."""


@dataclasses.dataclass(frozen=True)
class Doing:
    """``section`` has been open since ``since`` (seconds since the epoch) with a limit of ``limit_s``.

    ``overran`` is the last section that was left after its limit, at ``overran_at``.
    """

    pid: int
    section: str
    since: float
    limit_s: float | None
    step: int
    overran: str | None = None
    overran_at: float = 0.0
    node: str = ""
    span_s: float = 0.0
    """A new step in the same section is noted down after so many seconds."""

    def overdue(self, now: float) -> bool:
        return self.limit_s is not None and now - self.since >= self.limit_s


@dataclasses.dataclass(frozen=True)
class LastLife:
    """How the previous process of this rank ended, as far as files tell."""

    doing: Doing
    ended: float

    def sign(self, rank: int) -> Sign:
        """What can be compared with the other ranks' last signs."""
        doing = self.doing
        place = (rank, doing.node, doing.section, doing.since, doing.step)
        return Sign(*place, doing.span_s, self.ended, self.hung_in)

    @property
    def hung_in(self) -> str | None:
        """The section whose limit had passed when the rank ended, or was woken to be killed."""
        if self.doing.overdue(self.ended):
            return self.doing.section
        return self.doing.overran if self.ended - self.doing.overran_at < WOKEN_S else None


class RankRecord:
    """The file of one rank. Writing costs one ``pwrite``; without a directory it does nothing."""

    def __init__(self, directory: Path | None, rank: int) -> None:
        self._handle: int | None = None
        self.last_life: LastLife | None = None
        if directory is not None:
            path = rank_record_path(directory, rank)
            self.last_life = read_last_life(path)
            self._handle = _open(path)

    def write(self, doing: Doing) -> None:
        _write_slot(self._handle, 0, dataclasses.asdict(doing))

    def close(self) -> None:
        """The rank leaves on purpose: nothing of it is to be taken for a hang."""
        if self._handle is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._handle, 0)
                os.close(self._handle)
            self._handle = None


def _open(path: Path) -> int | None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    except OSError as error:
        logger().warning("the record of this rank is not kept: %s", error)
        return None


def _write_slot(handle: int | None, slot: int, content: dict[str, object]) -> None:
    if handle is not None:
        # On a full disk the record stays as it was; that is no reason to end a training.
        with contextlib.suppress(OSError):
            os.pwrite(handle, json.dumps(content).encode().ljust(SLOT - 1) + b"\n", slot * SLOT)


def note_end(path: Path, pid: int) -> None:
    """Written by the watch of process ``pid`` when that process is gone, however it went."""
    if not path.exists():
        return
    handle = os.open(path, os.O_WRONLY)
    try:
        _write_slot(handle, 1, {"pid": pid, "ended": time.time()})
    finally:
        os.close(handle)


def read_last_life(path: Path) -> LastLife | None:
    """What ``path`` says of the previous process; None when there was none, or it left on purpose."""
    try:
        lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip(" \0")]
        told = Doing(**lines[0])
        limit_s = None if told.limit_s is None else float(told.limit_s)
        overran = None if told.overran is None else str(told.overran)
        values = (int(told.pid), str(told.section), float(told.since), limit_s, int(told.step))
        doing = Doing(*values, overran, float(told.overran_at), str(told.node), float(told.span_s))
        ended = float(lines[1]["ended"]) if len(lines) > 1 and lines[1]["pid"] == doing.pid else time.time()
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return LastLife(doing, ended)
