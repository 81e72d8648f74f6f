"""Event files of jobs that never ran, written by the real EventLog at times of the test's own choice."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nemo_resiliency_plugins.contract import Attempt, rank_record_path
from nemo_resiliency_plugins.runtime import events
from nemo_resiliency_plugins.runtime.events import EventLog

EPOCH = 1_700_000_000.0
FIRST = Attempt("7")


@dataclasses.dataclass(frozen=True)
class Clock:
    """Stands in for the module ``time``; patching that for each of a million events would take minutes."""

    now: float

    def time(self) -> float:
        return self.now


@dataclasses.dataclass
class Job:
    """``ranks_per_node`` ranks are on each of the nodes n0, n1, ..."""

    directory: Path
    ranks: int = 2
    ranks_per_node: int = 1
    launcher: dict[str, Any] = dataclasses.field(default_factory=dict)
    """What the ranks tell of the processes that they depend on."""

    def node(self, rank: int) -> str:
        return f"n{rank // self.ranks_per_node}"

    @contextlib.contextmanager
    def rank(self, rank: int, attempt: Attempt) -> Iterator[Rank]:
        log = EventLog(self.directory, attempt, rank)
        yield Rank(log, self.node(rank), self.ranks, self.launcher)
        log.close()

    def record(
        self,
        rank: int,
        *,
        since: float,
        limit_s: float = 5.0,
        ended: float | None,
        section: str = "step",
        step: int = 12,
    ) -> None:
        """What a rank has said last of itself, and its watch of its end."""
        path = rank_record_path(self.directory, rank)
        path.parent.mkdir(exist_ok=True)
        said = {"pid": 1, "section": section, "since": EPOCH + since, "limit_s": limit_s, "step": step}
        said |= {"node": self.node(rank), "span_s": 1.0}
        end = [] if ended is None else [{"pid": 1, "ended": EPOCH + ended}]
        path.write_text("".join(f"{json.dumps(each)}\n" for each in (said, *end)))

    def injected(self, at: float, rank: int, kind: str, attempt: Attempt) -> None:
        """As the command line notes it down."""
        place = {"rank": rank, "attempt": attempt.name, "cycle": attempt.cycle, "node": self.node(rank)}
        event = {"event": "fault_injected", "time": EPOCH + at, **place, "kind": kind, "step": None}
        with (self.directory / "events" / f"{attempt.name}-requests.jsonl").open("a") as file:
            file.write(json.dumps(event) + "\n")

    def start(
        self,
        at: float,
        attempt: Attempt = FIRST,
        *,
        resumed: int | None = None,
        saves: tuple[int, ...] = (),
        step_s: float = 1.0,
        left: str | None = None,
        of: range | None = None,
    ) -> None:
        """All ranks start at ``at``, have a session 2 s and a first step 5 s later, and save after some steps.

        ``left``: why they leave together, one second after the last save.
        """
        for number in of or range(self.ranks):
            with self.rank(number, attempt) as rank:
                rank.started(at, resumed)
                first = resumed or 0
                for step in saves:
                    when = at + 5 + (step - first) * step_s
                    rank.tell(when, "checkpoint", step=step, tier="global", written=True, seconds=0.1, loss=1.0)
                if left is not None:
                    end = at + 6 + (saves[-1] - first if saves else 0) * step_s
                    rank.tell(end, left, step=saves[-1] if saves else first)
                    rank.tell(end + 0.5, "rank_left")
                    rank.tell(end + 1, "rank_ended", pid=1)


@dataclasses.dataclass
class Rank:
    """Tells what one rank has seen. Times are seconds since EPOCH."""

    log: EventLog
    node: str
    world_size: int
    launcher: dict[str, Any]

    def tell(self, at: float, event: str, **fields: Any) -> None:
        events.time = Clock(EPOCH + at)  # type: ignore[assignment]
        try:
            self.log.emit(event, **fields)
        finally:
            events.time = time

    def started(self, at: float, resumed: int | None) -> None:
        self.tell(at, "rank_started", pid=1, node=self.node, script="train.py", **self.launcher)
        self.tell(at + 2, "session_started", pid=1, node=self.node, world_size=self.world_size)
        self.tell(at + 4, "resumed", step=resumed, tier=None if resumed is None else "global", seconds=0.5)
        self.tell(at + 5, "first_step", step=resumed or 0)

    def raised(self, at: float, kind: str, message: str, code: int = 1, **known: Any) -> None:
        self.tell(at, "rank_failed", exception=kind, message=message, traceback=[], code=code, **known)
        self.tell(at + 0.1, "rank_ended", pid=1)

    def lost_a_peer(self, at: float) -> None:
        self.raised(at, "RuntimeError", "[gloo/pair.cc:537] Read error [10.0.0.1]:99: Connection reset by peer")

    def killed(self, at: float) -> None:
        self.tell(at, "rank_ended", pid=1)

    def says_it_hung(
        self, at: float, *, since: float, ended: float, step: int = 8, section: str = "step", hung: bool = True
    ) -> None:
        times = {"since": EPOCH + since, "ended": EPOCH + ended, "span_s": 1.0}
        fields = {"section": section, "step": step, "hung": section if hung else None, "node": self.node}
        self.tell(at, "last_life", **times, **fields)
