"""What the events of a job tell about its faults and how it came back from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

Event = dict[str, Any]

HANGS = ("hang", "rank_hung")


@dataclasses.dataclass(frozen=True)
class Recovery:
    """One injected fault. Times are seconds after it; None: that has not happened."""

    kind: str
    rank: int
    step: int | None
    noticed_s: float | None
    running_s: float | None
    steps_again: int | None


def recoveries(events: Iterable[Event]) -> list[Recovery]:
    """The injected faults in order of time."""
    ordered = sorted(events, key=lambda event: float(event["time"]))
    return [_recovery(fault, ordered) for fault in ordered if fault["event"] == "fault_injected"]


def newest_step(events: Iterable[Event]) -> int:
    """The newest checkpoint so far, or 0."""
    return max((event["step"] for event in events if event["event"] == "checkpoint"), default=0)


def _recovery(fault: Event, events: list[Event]) -> Recovery:
    later = [event for event in events if event["time"] >= fault["time"]]
    resumed, running = _first(later, "resumed"), _first(later, "first_step")
    noticed = _first((event for event in later if _notices(fault, event)), "rank_ended")
    again = fault["step"] - (resumed["step"] or 0) if resumed and fault["step"] is not None else None
    return Recovery(fault["kind"], fault["rank"], fault["step"], _since(fault, noticed), _since(fault, running), again)


def _notices(fault: Event, event: Event) -> bool:
    """A hung rank is noticed when its monitor ends it, any other fault when another rank ends."""
    return (event["rank"] == fault["rank"]) is (fault["kind"] in HANGS)


def _first(events: Iterable[Event], name: str) -> Event | None:
    return next((event for event in events if event["event"] == name), None)


def _since(fault: Event, event: Event | None) -> float | None:
    return None if event is None else float(event["time"]) - float(fault["time"])
