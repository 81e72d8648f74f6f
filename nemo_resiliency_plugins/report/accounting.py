"""Where the time of a job went: every second of its wall time belongs to exactly one cause."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Sequence

from nemo_resiliency_plugins.report.starts import Start


class Cause(str, enum.Enum):
    """What a second was spent on, in the order in which a start goes through them."""

    RESTART = "restart in the job"
    AWAITING = "until the next attempt"
    STARTUP = "start-up and imports"
    SETUP = "set-up and load"
    STEPS = "steps that counted"
    SAVING = "held by checkpoints"
    AGAIN = "steps done again"
    DETECTION = "until a fault was noticed"
    LEAVING = "leaving together"


Piece = tuple[Cause, float]


def pieces_of(start: Start, before: Start | None, later: Sequence[Start], end: float) -> list[Piece]:
    """The seconds from the end of ``before``, or from the begin of the job, to the ``end`` of ``start``.

    Args:
        later: all starts after it; those that have not resumed so far do not say what of it will count.
    """
    found = []
    marks = list(_marks(start, before, later, end))
    for (cause, begin), until in zip(marks, [*(time for _, time in marks[1:]), end], strict=True):
        found.append((cause, max(0.0, until - begin)))
    return list(_without_saving(found, start.saving_s))


def end_of(start: Start) -> float:
    """When the last rank of ``start`` is known to have ended, or has told something last."""
    return max(start.last, start.ends.last, start.began)


def counted_until(start: Start, later: Sequence[Start]) -> float:
    """Steps that were done later were done again; those of the last start, unless it has failed, all count."""
    if not later and start.ends.first is None:
        return math.inf
    kept = _kept(start, later)
    if start.left in ("finished", "preempted") or kept is None:
        return math.inf if start.left else -math.inf
    if start.resumed is not None and kept <= start.resumed:
        return -math.inf
    at = start.durable_at(kept)
    return at if at is not None else math.inf


def _kept(start: Start, later: Sequence[Start]) -> int | None:
    """The step from which the job went on, or can go on as far as is known; None: there is no checkpoint."""
    for each in later:
        if each.resumed is not None or each.is_running:
            return each.resumed
    return start.newest_durable[0] if start.newest_durable else None


def _marks(start: Start, before: Start | None, later: Sequence[Start], end: float) -> Iterator[Piece]:
    """When each phase began, never before the one in front of it."""
    latest = end_of(before) if before else start.began
    waiting = Cause.RESTART if before and before.attempt == start.attempt else Cause.AWAITING
    planned = [
        (waiting, latest),
        (Cause.STARTUP, start.began),
        (Cause.SETUP, _in_set_up(start, end)),
        (Cause.STEPS, start.running if start.is_running else end),
        (Cause.AGAIN, counted_until(start, later)),
    ]
    planned.append(_last_phase(start, end))
    stops = planned[-1][1]
    for cause, at in planned:
        latest = max(latest, min(at, end, stops))
        yield cause, latest


def _in_set_up(start: Start, end: float) -> float:
    """A script without a session is not seen before its first step."""
    if start.in_session > -math.inf:
        return start.in_session
    return start.running if start.is_running else end


def _last_phase(start: Start, end: float) -> Piece:
    first = start.ends.first
    if first is not None:
        return Cause.DETECTION, fault_began(start)
    noticed = start.noticed if start.left == "preempted" else math.inf
    return Cause.LEAVING, min(noticed, start.left_at if start.left else end, end)


def fault_began(start: Start) -> float:
    """When the first rank went wrong: that is noticed later only where it hung, or a fault was injected."""
    first = start.ends.first
    assert first is not None
    told = [event["time"] for event in start.injected if event["rank"] == first.rank and event["time"] <= first.at]
    if told:
        return float(max(told))
    return first.at if first.since is None else first.since


def _without_saving(pieces: Sequence[Piece], saving_s: float) -> Iterator[Piece]:
    """Checkpoints hold the training in the steps; what was done again has its part of them."""
    for cause, seconds in pieces:
        if cause is Cause.STEPS:
            held = min(saving_s, seconds)
            yield cause, seconds - held
            yield Cause.SAVING, held
        else:
            yield cause, seconds


def share(pieces: Sequence[Piece], cause: Cause) -> float:
    """The part of all the seconds that went to ``cause``; 0 where there are none."""
    total = sum(seconds for _, seconds in pieces)
    return sum(seconds for each, seconds in pieces if each is cause) / total if total else 0.0
