"""How the ranks of one start have ended, and which of them was the first: the others follow from it."""

from __future__ import annotations

import dataclasses
import enum
import heapq
import re
from typing import Any

from nemo_resiliency_plugins.contract import STEP
from nemo_resiliency_plugins.errors import is_of_a_peer
from nemo_resiliency_plugins.evidence import Hindmost, Sign, one_of
from nemo_resiliency_plugins.report.reading import Event

DELIBERATE = ("finished", "preempted", "straggler_stop", "results_stop")
ENDING_FAULTS = ("kill", "hang", "stop", "exception", "rank_killed", "rank_hung", "preempt")
"""Injected faults that end a rank."""
INJECTED = "InjectedError"
"""The runtime's exception: its message tells the step, which is told anyway."""
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
UNTOLD = "killed by a signal, the cause is not known yet"


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
    where: str | None = None
    """File and line of the user's code that an exception came from."""
    suspects: list[tuple[int, str]] = dataclasses.field(default_factory=list)
    """Rank and node of others that may as well have been the one that hung."""

    @property
    def place(self) -> str:
        return one_of([(self.rank, self.node), *self.suspects])

    @property
    def ranks(self) -> list[int]:
        """This one, and all that are suspected like it."""
        return [self.rank, *(rank for rank, _ in self.suspects)]

    def __str__(self) -> str:
        """What happened to it, at which step, and where in the code."""
        injected = f" (injected: {self.injected})" if self.injected and self.injected != "exception" else ""
        at = f" at step {self.step}" if self.step is not None else ""
        where = f" ({self.where})" if self.where else ""
        return f"{self.what}{injected}{at}{where}"


class RankEnds:
    """Of one start. Only those that can matter are kept, ``kept`` of each way."""

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._now: End | None = None
        self._heaps: dict[How, list[tuple[float, int, End]]] = {how: [] for how in How}
        self.counts = dict.fromkeys(How, 0)
        self.failed = 0
        self._is_untold = False
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

    def hung(self, hindmost: Hindmost, *, done: int, more: bool, is_last: bool) -> None:
        """Told by the next life of each rank, or by what it said last. Without any that overran, nobody has hung.

        ``done``: steps that all ranks have done. ``more``: the next lives have not told all so far. ``is_last``: ranks
        without an end may be those that hang.
        """
        self._put_away()
        self._is_untold = more and self.counts[How.KILLED] > hindmost.compared
        if hindmost.hung is None or self._is_untold:
            return
        silent = self._places(How.VANISHED) if is_last else []
        for sign in hindmost.signs:
            found = (end for how in (How.KILLED, How.VANISHED) for _, _, end in self._heaps[how])
            end = next((end for end in found if end.rank == sign.rank), None)
            if end is None:
                end = End(sign.rank, sign.node, sign.ended, How.KILLED, "")
                self._heaps[How.HUNG].append((-end.at, end.rank, end))
            self._is_hung(end, sign, hindmost, silent)
            if hindmost.section == STEP:
                end.step = max(end.step or 0, done)  # noted at the begin of the section, which short steps share

    def injected(self, event: Event) -> None:
        """A fault was put into a rank of this start."""
        self._put_away()
        for heap in self._heaps.values():
            for _, _, end in heap:
                is_silent = end.how is How.VANISHED and event["time"] >= end.at
                if end.rank != event["rank"] or event["kind"] not in ENDING_FAULTS:
                    continue
                if is_silent:
                    end.at, end.what = event["time"], "silent"
                if event["time"] <= end.at:
                    end.injected, end.suspects = event["kind"], []
                    end.step = end.step if event["step"] is None else event["step"]

    def close(self, *, is_last: bool, left: str | None) -> None:
        """All is known. ``left``: why all ranks have left together; ``is_last``: those without an end may run."""
        self._put_away()
        every = [end for heap in self._heaps.values() for _, _, end in heap]
        noted = sum(self.counts[how] for how in (*CAUSES, How.LEFT_ALONE))
        if left is None and (noted or (self.counts[How.VANISHED] and not is_last)):
            self.failed = noted + self.counts[How.VANISHED] + self.counts[How.STOPPED]
            self.first = _first(every)
            self._clear_others(every)
            self._leave_open()
        self.last = max([self.last, *(end.at for end in every)])

    def _clear_others(self, every: list[End]) -> None:
        """Where it is known who hung, the others waited."""
        for end in every:
            if end.how is How.HUNG and self.first is not None and end.rank not in self.first.ranks:
                end.suspects, end.what = [], end.what.replace("hung", "waited")

    def _leave_open(self) -> None:
        """The one that hung is killed as those are that waited for it: nobody is accused before all have told."""
        first = self.first
        if self._is_untold and first is not None and first.how is How.KILLED and not first.injected:
            first.what = UNTOLD
            first.suspects = [each for each in self._places(How.KILLED) if each[0] != first.rank]

    def _places(self, how: How) -> list[tuple[int, str]]:
        return [(end.rank, end.node) for _, _, end in self._heaps[how]]

    def secondary(self) -> list[End]:
        """Ranks that have ended because of the first one, as far as they are kept, in order of time."""
        every = [end for how, heap in self._heaps.items() if how is not How.LEFT for _, _, end in heap]
        told = self.first.ranks if self.first else []
        return sorted((end for end in every if end.rank not in told), key=lambda end: end.at)[: self._kept]

    def _raised(self, now: End, event: Event) -> None:
        if now.how in (How.RAISED, How.LEFT_ALONE):
            return  # the session's, before that of the process
        is_peer = is_of_a_peer(event["exception"], event["message"])
        now.how, now.at = How.LEFT_ALONE if is_peer else How.RAISED, event["time"]
        now.what, now.step, now.where = _in_words(event), event.get("step"), event.get("where")

    def _ended(self, now: End, event: Event) -> None:
        self.last = max(self.last, event["time"])
        if now.how is How.VANISHED and event["event"] == "life_ended":
            now.how, now.what = How.STOPPED, "began its next life"
        elif now.how is How.VANISHED:
            now.how, now.what = How.KILLED, "killed by a signal"

    def _is_hung(self, end: End, sign: Sign, hindmost: Hindmost, silent: list[tuple[int, str]]) -> None:
        self.counts[end.how] -= 1
        self.counts[How.HUNG] += 1
        end.how, end.at, end.since, end.what = How.HUNG, sign.ended, sign.since, f"hung in {hindmost.section}"
        if hindmost.are_told_apart and not silent:
            end.what += ", behind the other ranks"
        end.node = end.node or sign.node
        end.step = sign.step if end.step is None else end.step
        end.suspects = [each for each in dict.fromkeys([*hindmost.places, *silent]) if each[0] != end.rank]

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
    injected = [end for end in ends if end.injected and end.how in (*CAUSES, How.VANISHED)]
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
    if event["exception"] == INJECTED:
        return "an injected exception"
    message = _ORIGIN.sub("", str(event["message"]).strip()).splitlines()
    if event["exception"] == "SystemExit":
        code = event.get("code")
        return f"exited with code {code}" if code is not None else f"exited: {event['message']}"
    return f"{event['exception']}: {message[0][:200]}" if message else str(event["exception"])
