"""Section timeouts learned from the run: plain arithmetic, and the file that carries it to later runs.

A learned limit is the longest time seen times a safety factor. What is left out beforehand makes the maximum
robust: warm-up steps, and steps that were paused or interrupted. A long step beyond those counts in full,
since a limit that ignores it would kill the run the next time it comes (a periodic evaluation, say).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nemo_resiliency_plugins.contract import write_atomically

MIN_SAMPLES = 16
FILE_NAME = "ft_state.json"
FORMAT = 1
LONGEST_S = 1e9
MOST_DOUBLINGS = 64


@dataclasses.dataclass(frozen=True)
class Seen:
    """What is known of one section: how often it ran, its longest time, and how often its limit was too tight."""

    samples: int = 0
    longest_s: float = 0.0
    doublings: int = 0

    def merged(self, other: Seen) -> Seen:
        return Seen(
            max(self.samples, other.samples),
            max(self.longest_s, other.longest_s),
            max(self.doublings, other.doublings),
        )

    def added(self, seconds: float, samples: int = 1) -> Seen:
        return Seen(self.samples + samples, max(self.longest_s, seconds), self.doublings)

    def doubled(self) -> Seen:
        """A limit that killed a rank may have been too tight."""
        return Seen(self.samples, self.longest_s, min(self.doublings + 1, MOST_DOUBLINGS))


@dataclasses.dataclass(frozen=True)
class Policy:
    """How a limit follows from what was seen."""

    factor: float
    floor_s: float

    def limit(self, configured: float | None, seen: Seen) -> float | None:
        """Seconds; never above ``configured``. None, which means no limit, stays None until enough was seen."""
        if seen.samples < MIN_SAMPLES:
            return configured
        learned = max(self.floor_s, seen.longest_s * self.factor) * 2.0**seen.doublings
        return learned if configured is None else min(configured, learned)


class BadState(Exception):
    """``ft_state.json`` cannot be used; the message says why."""


def save(path: Path, *, world_size: int, seen: Mapping[str, Seen], limits: Mapping[str, float | None]) -> None:
    """Write what was seen, and for the reader's eye the limits in seconds that follow from it."""
    content = {
        "format": FORMAT,
        "world_size": world_size,
        "seen": {name: dataclasses.asdict(entry) for name, entry in seen.items()},
        "limits_s": dict(limits),
    }
    write_atomically(path, json.dumps(content, indent=1) + "\n")


def load(path: Path, *, world_size: int, sections: set[str]) -> Mapping[str, Seen]:
    """Read what was seen; empty where nothing has been written yet.

    Raises:
        BadState: the file is unreadable, of another world size, or holds anything that is not sane.
    """
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise BadState(f"unreadable: {error}") from error
    try:
        return _checked(content, world_size, sections)
    except (LookupError, TypeError, AttributeError) as error:
        raise BadState(f"not of the form that this version writes: {error!r}") from error


def _checked(content: Any, world_size: int, sections: set[str]) -> Mapping[str, Seen]:
    if content["format"] != FORMAT:
        raise BadState(f"format {content['format']!r} is not {FORMAT}")
    if content["world_size"] != world_size:
        raise BadState(f"learned with world size {content['world_size']!r}, this run has {world_size}")
    seen = {name: Seen(**values) for name, values in content["seen"].items()}
    unknown = sorted((set(seen) | set(content["limits_s"])) - sections)
    if unknown:
        raise BadState(f"sections that this run does not have: {', '.join(unknown)}")
    for name, entry in seen.items():
        if not (
            _is_count(entry.samples)
            and _is_count(entry.doublings)
            and entry.doublings <= MOST_DOUBLINGS
            and _is_time(entry.longest_s, 0.0)
        ):
            raise BadState(f"section {name!r} holds {entry}")
    for name, limit in content["limits_s"].items():
        if limit is not None and not _is_time(limit, 1e-9):
            raise BadState(f"the limit of section {name!r} is {limit!r}")
    return seen


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def _is_time(value: Any, least: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= LONGEST_S
