"""How the ranks of one start have ended, and which of them was the first: the others follow from it."""

from __future__ import annotations

import dataclasses
import enum
import heapq
import re
from typing import Any

from nemo_resiliency_plugins.errors import is_of_a_peer
from nemo_resiliency_plugins.report.reading import Event

DELIBERATE = ("finished", "preempted", "straggler_stop", "results_stop")
ENDING_FAULTS = ("kill", "hang", "stop", "exception", "rank_killed", "rank_hung", "preempt")
"""Injected faults that end a rank."""
_ORIGIN = re.compile(r"^\[[^\]]*\] *")
"""What torch puts in front of a message: the place in its source."""


def is_deliberate(event: str) -> bool:
    """Whether all ranks have agreed to end."""
    return event in DELIBERATE


class How(enum.IntEnum):
    """The way a rank has ended; of two at the same time, the lower one is more likely the cause."""

    RAISED = 0
    HUNG = 1
    NEVER_STARTED = 2
    KILLED = 3
    VANISHED = 4
    """Its node was lost, or its watch was killed with it: nobody has noted its end."""
    LEFT_ALONE = 5
    """By another rank: an error of communication."""
    STOPPED = 6
    """By the launcher, after another one."""
    LEFT = 7
    """In peace."""


CAUSES = (How.RAISED, How.HUNG, How.NEVER_STARTED, How.KILLED)


@dataclasses.dataclass
class End:
    """``at``: seconds since the epoch. ``since``: when a rank that hung was last seen to go on."""

    rank: int
    node: str
    at: float
    how: How
    what: str
    step: int | None = None
    since: float | None = None
    injected: str | None = None
    """The fault that was injected into it."""

    @property
    def place(self) -> str:
        return f"rank {self.rank} on {self.node}" if self.node else f"rank {self.rank}"


class RankEnds:
    """Of one start. Only those that can matter are kept, ``kept`` of each way."""

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._now: End | None = None
        self._heaps: dict[How, list[tuple[float, int, End]]] = {how: [] for how in How}
        self.counts = dict.fromkeys(How, 0)
        self.failed = 0
        self.first: End | None = None
        self.last = float("-inf")

    def add(self, event: Event) -> None:
        """Events come rank by rank, and in order within a rank."""
        if self._now is None or event["rank"] != self._now.rank:
            self._put_away()
            self._now = End(event["rank"], "", event["time"], How.VANISHED, "vanished")
        now, name = self._now, event["event"]
        now.node = event.get("node") or now.node if name in ("rank_started", "session_started") else now.node
        if name in ("session_failed", "rank_failed", "life_failed"):
            self._raised(now, event)
        elif name == "startup_timeout":
            now.how, now.what = How.NEVER_STARTED, f"did not reach its session within {event['limit_s']:g} s"
        elif name == "stopped_by_launcher":
            now.how, now.what = How.STOPPED, "stopped by the launcher"
        elif is_deliberate(name) or name == "rank_left":
            now.how, now.what = How.LEFT, name
        if now.how is How.VANISHED:
            now.at = event["time"]
        if name in ("rank_ended", "life_ended"):
            self._ended(now, event)

    def hung(self, rank: int, section: str, since: float | None, ended: float, step: int) -> None:
        """Told by the next life of ``rank``."""
        self._put_away()
        for heap in self._heaps.values():
            for _, _, end in heap:
                if end.rank == rank and end.how in (How.KILLED, How.VANISHED):
                    self._is_hung(end, section, since, ended, step)

    def injected(self, event: Event) -> None:
        """A fault was put into a rank of this start."""
        self._put_away()
        for heap in self._heaps.values():
            for _, _, end in heap:
                if end.rank == event["rank"] and event["kind"] in ENDING_FAULTS and event["time"] <= end.at:
                    end.injected, end.step = event["kind"], event["step"]

    def close(self, *, is_last: bool, left: str | None) -> None:
        """All is known. ``left``: why all ranks have left together; ``is_last``: those without an end may run."""
        self._put_away()
        every = [end for heap in self._heaps.values() for _, _, end in heap]
        noted = sum(self.counts[how] for how in (*CAUSES, How.LEFT_ALONE))
        if left is None and (noted or (self.counts[How.VANISHED] and not is_last)):
            self.failed = noted + self.counts[How.VANISHED] + self.counts[How.STOPPED]
            self.first = _first(every)
        self.last = max([self.last, *(end.at for end in every)])

    def secondary(self) -> list[End]:
        """Ranks that have ended because of the first one, as far as they are kept, in order of time."""
        every = [end for how, heap in self._heaps.items() if how is not How.LEFT for _, _, end in heap]
        return sorted((end for end in every if end is not self.first), key=lambda end: end.at)[: self._kept]

    def _raised(self, now: End, event: Event) -> None:
        if now.how in (How.RAISED, How.LEFT_ALONE):
            return  # the session's, before that of the process
        is_peer = is_of_a_peer(event["exception"], event["message"])
        now.how, now.at = How.LEFT_ALONE if is_peer else How.RAISED, event["time"]
        now.what = _in_words(event)

    def _ended(self, now: End, event: Event) -> None:
        self.last = max(self.last, event["time"])
        if now.how is How.VANISHED and event["event"] == "life_ended":
            now.how, now.what = How.STOPPED, "began its next life"
        elif now.how is How.VANISHED:
            now.how, now.what = How.KILLED, "killed by a signal"

    def _is_hung(self, end: End, section: str, since: float | None, ended: float, step: int) -> None:
        self.counts[end.how] -= 1
        self.counts[How.HUNG] += 1
        end.how, end.at, end.since, end.what = How.HUNG, ended, since, f"hung in {section.replace('_', ' ')}"
        end.step = step if end.step is None else end.step

    def _put_away(self) -> None:
        end, self._now = self._now, None
        if end is None:
            return
        self.counts[end.how] += 1
        heap = self._heaps[end.how]
        heapq.heappush(heap, (-end.at, end.rank, end))
        if len(heap) > self._kept:
            heapq.heappop(heap)  # the latest


def _first(ends: list[End]) -> End | None:
    injected = [end for end in ends if end.injected and end.how in CAUSES]
    causes = injected or [end for end in ends if end.how in CAUSES]
    if any(end.how is How.HUNG for end in causes):
        # The launcher notices a killed rank at once, so those that were killed here were stopped after the hang.
        causes = [end for end in causes if end.how is not How.KILLED]
    lost = [end for end in ends if end.how is How.VANISHED]
    others = {end.node for end in ends if end.how is not How.VANISHED}
    if lost and not injected and all(end.how is How.KILLED for end in causes):
        # A whole node without a sign of life: what ended elsewhere then was stopped because of it.
        whole = [end for end in lost if end.node and end.node not in others]
        causes = whole or causes
    chosen = causes or lost or ends
    return min(chosen, key=lambda end: (end.at, end.how)) if chosen else None


def _in_words(event: dict[str, Any]) -> str:
    message = _ORIGIN.sub("", str(event["message"]).strip()).splitlines()
    if event["exception"] == "SystemExit":
        code = event.get("code")
        return f"exited with code {code}" if code is not None else f"exited: {event['message']}"
    return f"{event['exception']}: {message[0][:200]}" if message else str(event["exception"])
