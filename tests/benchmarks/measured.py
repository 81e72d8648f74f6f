"""Seconds from a fault to the first new step, and where they went, by the events that the ranks leave."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

Event = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Moment:
    """Up to an event; of those of several ranks the last counts, unless ``of`` takes another."""

    label: str
    event: str
    of: Callable[[Iterable[float]], float] = max


RESTART = (
    Moment("first rank gone", "rank_ended", min),
    Moment("all gone", "rank_ended"),
    Moment("batch script", "batch_started"),
    Moment("ranks started", "rank_started"),
    Moment("imports", "session_started"),
    Moment("set-up", "load_began"),
    Moment("load", "resumed"),
    Moment("first step", "first_step"),
)
"""Of ranks that are started again. Those that were started ahead have their imports behind them."""


@dataclasses.dataclass(frozen=True)
class Measured:
    """Seconds from a fault to the first new step on every rank, and of each part of them."""

    total_s: float
    parts: dict[str, float]

    @classmethod
    def between(
        cls, began: float, ended: float, events: Iterable[Event], moments: Sequence[Moment] = RESTART
    ) -> Measured:
        """``began``, ``ended``: seconds since the epoch. Parts that no event has ended are left out."""
        within = [event for event in with_loads(events) if began <= event["time"] <= ended]
        parts, previous = {}, began
        for moment in moments:
            times = [event["time"] for event in within if event["event"] == moment.event]
            if times:
                reached = max(moment.of(times), previous)
                parts[moment.label] = reached - previous
                previous = reached
        return cls(ended - began, parts)


def with_loads(events: Iterable[Event]) -> Iterator[Event]:
    """The event at the end of a load tells how long it took."""
    for event in events:
        yield event
        if event["event"] == "resumed":
            yield {"event": "load_began", "time": event["time"] - event["seconds"]}


@dataclasses.dataclass(frozen=True)
class Recoveries:
    """What was measured of several faults, by key: every run's total, and the median of each part."""

    found: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    parts: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)

    def add(self, key: str, runs: Sequence[Measured]) -> None:
        self.found[key] = [run.total_s for run in runs]
        labels = dict.fromkeys(label for run in runs for label in run.parts)
        self.parts[key] = {label: statistics.median(run.parts.get(label, 0.0) for run in runs) for label in labels}
