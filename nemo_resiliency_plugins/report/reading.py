"""The files of a job directory, read line by line: a large job needs no more memory than a small one."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nemo_resiliency_plugins.errors import ConfigError
from nemo_resiliency_plugins.evidence import Sign

Event = dict[str, Any]

EVENTS, NRP = "events", "nrp"
DEPTH = 6
"""How many directories below the one that the user names a job may lie: NeMo-Run's experiments are deep."""
_NAME = re.compile(r"(?P<attempt>.+?)-(rank(?P<rank>\d+)|policy|requests)\.jsonl")


@dataclasses.dataclass(frozen=True, slots=True)
class EventFile:
    """``rank`` is None for what the batch script and the command line have written. Small: a job may have 100,000."""

    directory: Path
    name: str
    attempt: str
    rank: int | None

    @property
    def path(self) -> Path:
        return self.directory / self.name


def find_job(given: Path) -> Path:
    """The ``nrp`` directory of the one job in, at or above which ``given`` points.

    Raises:
        ConfigError: there is no such directory, it cannot be read, no job is in it, or there are several.
    """
    try:
        found = sorted(_jobs_below(given, DEPTH), key=lambda path: (path / EVENTS).stat().st_mtime)
    except OSError as error:
        rule = f"cannot be read: {error.strerror}: {error.filename}"
        raise ConfigError("DIR", str(given), rule, "Name the directory of a job that you may read.") from error
    if len(found) == 1:
        return found[0]
    if not found:
        remedy = "Name the job's directory, which holds nrp/events; NRP_DIR says where that is without NeMo-Run."
        raise ConfigError("DIR", str(given), "holds no events of a job", remedy)
    names = ", ".join(str(path) for path in found[-5:])
    raise ConfigError("DIR", str(given), f"holds {len(found)} jobs, the newest last: {names}", "Name one of them.")


def _jobs_below(directory: Path, depth: int) -> Iterator[Path]:
    if (directory / EVENTS).is_dir():
        yield directory
        return
    beside = [path.parent for path in sorted(directory.glob(f"*/{NRP}/{EVENTS}"))]
    if (directory / NRP / EVENTS).is_dir():
        yield from [directory / NRP, *beside]  # of tasks that share the directory
        return
    if depth:
        for child in directory.iterdir():
            if child.is_dir() and not child.is_symlink():
                yield from _jobs_below(child, depth - 1)


def event_files(directory: Path) -> list[EventFile]:
    """All event files, by attempt and rank; names alone are read."""
    found, home = [], directory / EVENTS
    for path in home.iterdir():
        if match := _NAME.fullmatch(path.name):
            rank = None if match["rank"] is None else int(match["rank"])
            found.append(EventFile(home, path.name, sys.intern(match["attempt"]), rank))
    return sorted(found, key=lambda file: (_in_order(file.attempt), math.inf if file.rank is None else file.rank))


@functools.cache
def _in_order(attempt: str) -> list[tuple[int, str]]:
    """Sorts numbers as numbers: attempt 12-10-0 comes after 12-9-0."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", attempt) if part]


def events_of(file: EventFile, leave_out: Sequence[str] = ()) -> Iterator[Event]:
    """The events of one file in order. A line that a crash has cut is left out.

    Args:
        leave_out: names of events that need not be parsed; the last event of a file is there in any case.
    """
    heads = tuple(f'{{"event": "{name}"' for name in leave_out)
    skipped = ""
    with file.path.open(errors="replace") as lines:
        for line in lines:
            skipped = line if heads and line.startswith(heads) else ""
            if not skipped:
                yield from _parsed(line)
    yield from _parsed(skipped)


def _parsed(line: str) -> Iterator[Event]:
    with contextlib.suppress(ValueError):
        event = json.loads(line)
        if isinstance(event, dict) and "event" in event and "time" in event:
            yield event


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a small file; empty where there is none, or it is being written."""
    with contextlib.suppress(OSError, ValueError):
        content = json.loads(path.read_text())
        return content if isinstance(content, dict) else {}
    return {}


def newest_policy(directory: Path) -> dict[str, Any]:
    """What the batch script has noted down; empty outside Slurm."""
    found = sorted(directory.glob("policy*.json"), key=lambda path: path.stat().st_mtime)
    return read_object(found[-1]) if found else {}


@dataclasses.dataclass(frozen=True)
class Doing:
    """What a rank said last of itself: in ``section`` since ``since``, at ``step``; ``ended`` when it was gone."""

    rank: int
    section: str
    since: float
    limit_s: float | None
    step: int
    ended: float | None
    node: str = ""
    span_s: float = 0.0

    @property
    def hung(self) -> bool:
        return self.ended is not None and self.limit_s is not None and self.ended - self.since >= self.limit_s

    def is_within_its_limit(self, now: float) -> bool:
        """Whether hang detection would still wait for it."""
        return self.ended is None and self.limit_s is not None and now - self.since < self.limit_s

    @property
    def sign(self) -> Sign | None:
        """Of a rank that is gone."""
        if self.ended is None:
            return None
        last = (self.rank, self.node, self.section, self.since, self.step, self.span_s)
        return Sign(*last, self.ended, self.section if self.hung else None)


def doings(directory: Path) -> Iterator[Doing]:
    """Of all ranks that are at work, or did not leave on purpose."""
    for path in sorted((directory / "ranks").glob("rank*.json")):
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip(" \0")]
            said, end = lines[0], lines[1] if len(lines) > 1 and lines[1]["pid"] == lines[0]["pid"] else {}
            rank = int(path.stem.removeprefix("rank"))
            now = (said["section"], said["since"], said["limit_s"], said["step"])
            yield Doing(rank, *now, end.get("ended"), said["node"], said["span_s"])
