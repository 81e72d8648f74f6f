"""The report as plain lines: each stands for itself, so that ``grep`` finds whole sentences."""

from __future__ import annotations

import datetime
from collections.abc import Iterator

from nemo_resiliency_plugins.report.summary import Failure, Report
from nemo_resiliency_plugins.report.timeline import (
    CHECKPOINT,
    FAULT,
    FOLLOWED,
    KINDS,
    SETUP,
    STARTUP,
    STEPS,
    Lane,
    Segment,
)
from nemo_resiliency_plugins.report.words import counted, duration

SIGNS = {STARTUP: ".", SETUP: ":", STEPS: "=", CHECKPOINT: "c", FAULT: "X", FOLLOWED: "x"}
SHOWN_SECONDARY = 3


def heading(report: Report) -> Iterator[str]:
    """State, first failure and goodput, a line each."""
    began = datetime.datetime.fromtimestamp(report.began).isoformat(" ", "seconds")
    yield f"{report.directory}"
    where = f"{counted(report.world_size, 'rank')} on {counted(report.nodes, 'node')}"
    yield f"{report.state}; step {_or_none(report.step)}, newest checkpoint {_or_none(report.durable)}; {where}"
    counts = (report.attempts, "attempt"), (len(report.starts), "start"), (len(report.failures), "failure")
    starts = ", ".join(counted(count, noun) for count, noun in counts)
    yield f"began {began}, {duration(report.wall_s)}; {starts}"
    yield f"goodput {report.goodput:.1%}: the part of the time that was spent in steps which counted"
    yield report.stragglers


def failures(report: Report) -> Iterator[str]:
    """A line for each failure, and one for each of some ranks that ended because of it."""
    for number, failure in enumerate(report.failures):
        yield f"{'first failure' if number == 0 else 'then'}: {failure}"
        yield from secondary(failure)


def secondary(failure: Failure) -> Iterator[str]:
    """What followed from the first rank's end."""
    for end in failure.secondary[:SHOWN_SECONDARY]:
        yield f"  secondary: {end.place}: {end.what[:120]}"
    if failure.others > SHOWN_SECONDARY:
        yield f"  secondary: {failure.others} ranks in all"


def chart(lanes: list[Lane], wall_s: float, width: int) -> Iterator[str]:
    """A line of signs for each rank, from the begin to the end of the job."""
    for lane in lanes:
        signs = [" "] * width
        for segment in sorted(lane.segments, key=lambda each: KINDS.index(each.kind)):
            first, last = (min(width - 1, int(at / wall_s * width)) if wall_s else 0 for at in _ends(segment))
            signs[first : last + 1] = SIGNS[segment.kind] * (last + 1 - first)
        yield f"rank {lane.rank:>4} {''.join(signs).rstrip()}"
    yield "         " + ", ".join(f"{sign} {kind.replace('-by-', ' by ')}" for kind, sign in SIGNS.items())


def _ends(segment: Segment) -> tuple[float, float]:
    return segment.begin, segment.end


def _or_none(value: int | None) -> str:
    return "none" if value is None else str(value)
