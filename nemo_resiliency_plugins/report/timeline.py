"""What single ranks did, start by start: of few ranks, since nobody can look at a thousand lanes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from nemo_resiliency_plugins.report.endings import is_deliberate
from nemo_resiliency_plugins.report.reading import Event, event_files, events_of
from nemo_resiliency_plugins.report.summary import Failure, Report

STARTUP, SETUP, STEPS, CHECKPOINT = "start-up", "set-up", "steps", "checkpoint"
FAULT, FOLLOWED = "fault", "ended-by-it"
"""The rank that went wrong, and those that failed because of it."""
KINDS = (STARTUP, SETUP, STEPS, CHECKPOINT, FOLLOWED, FAULT)
"""What comes later hides what is below it."""
FINEST = 1500
"""A lane has no more checkpoints than this in the width of the page."""


@dataclasses.dataclass(frozen=True)
class Segment:
    """Seconds since the begin of the job."""

    kind: str
    begin: float
    end: float
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Lane:
    """One rank of the job, over all its starts."""

    rank: int
    segments: list[Segment]


def chosen_ranks(report: Report, most: int) -> list[int]:
    """Those that failed first, rank 0, and then the lowest ones."""
    failed = [rank for failure in report.failures for rank in failure.first.ranks]
    wanted = dict.fromkeys([*failed[:most], 0, *range(min(most, report.world_size))])
    return sorted(list(wanted)[:most])


def lanes(directory: Path, report: Report, ranks: list[int]) -> list[Lane]:
    """Reads the events of these ranks alone."""
    found: dict[int, list[Segment]] = {rank: [] for rank in ranks}
    finest_s = report.wall_s / FINEST
    for file in event_files(directory):
        if file.rank in found:
            found[file.rank].extend(_Lane(report, finest_s).segments(events_of(file)))
    for failure in report.failures:
        for rank in failure.first.ranks:
            if rank in found:
                found[rank] = _with_fault(found[rank], _fault(failure, report))
    return [Lane(rank, sorted(each, key=lambda segment: segment.begin)) for rank, each in found.items()]


def _fault(failure: Failure, report: Report) -> Segment:
    """From when the rank went wrong until the end of its start: a killed rank can tell nothing of it itself."""
    begin = failure.began - report.began
    return Segment(FAULT, begin, max(begin, report.starts[failure.start].ended_s), str(failure.first))


def _with_fault(segments: list[Segment], fault: Segment) -> list[Segment]:
    """What the rank itself has told of its failure is that fault."""
    inside = [each for each in segments if each.kind == FOLLOWED and fault.begin <= each.begin <= fault.end]
    return [*(each for each in segments if each not in inside), fault]


class _Lane:
    """Turns the events of one file into segments."""

    def __init__(self, report: Report, finest_s: float) -> None:
        self._began = report.began
        self._finest_s = finest_s
        self._open: tuple[str, float, str] | None = None
        self._last_save = float("-inf")

    def segments(self, events: Iterator[Event]) -> Iterator[Segment]:
        at = 0.0
        for event in events:
            at = event["time"] - self._began
            name = event["event"]
            if name == "checkpoint":
                yield from self._save(event, at)
            elif name in ("rank_started", "life_began"):
                yield from self._switch((STARTUP, at, f"cycle {event['cycle']}"), at)
            elif name == "session_started":
                yield from self._switch((SETUP, at, event["node"]), at)
            elif name == "first_step":
                yield from self._switch((STEPS, at, f"from step {event['step']}"), at)
            elif name in ("rank_failed", "session_failed", "life_failed", "startup_timeout", "fault_injected"):
                yield from self._failed(event, at)
            elif name in ("rank_ended", "life_ended") or is_deliberate(name):
                yield from self._switch(None, at)
        yield from self._switch(None, at)

    def _switch(self, new: tuple[str, float, str] | None, at: float) -> Iterator[Segment]:
        if self._open is not None:
            kind, begin, note = self._open
            yield Segment(kind, begin, max(at, begin), note)
        self._open = new

    def _failed(self, event: Event, at: float) -> Iterator[Segment]:
        """The fault itself is drawn over the rank that was the first."""
        if event["event"] == "fault_injected":
            yield Segment(FAULT, at, at, f"injected: {event['kind']}")
        elif self._open is None or self._open[0] != FOLLOWED:
            note = f"{event.get('exception', event['event'])}: {event.get('message', '')}"[:160]
            yield from self._switch((FOLLOWED, at, note), at)

    def _save(self, event: Event, at: float) -> Iterator[Segment]:
        if event["written"] and at - self._last_save >= self._finest_s:
            self._last_save = at
            yield Segment(CHECKPOINT, max(0.0, at - event["seconds"]), at, f"checkpoint of step {event['step']}")
