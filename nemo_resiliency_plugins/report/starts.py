"""The starts of a job: each time that its ranks have begun to work, with what all of them together tell of it."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections import deque
from collections.abc import Iterable, Iterator

from nemo_resiliency_plugins import evidence
from nemo_resiliency_plugins.evidence import Hindmost, Sign
from nemo_resiliency_plugins.report.endings import RankEnds, is_deliberate
from nemo_resiliency_plugins.report.reading import Doing, Event, EventFile, events_of

KEPT_CHECKPOINTS = 64
KEPT_ENDS = 16
KEPT_NEWS = 64
OF_ALL_RANKS_ALIKE = ("checkpoint", "checkpoint_scheduled", "timeouts", "straggler_report", "determinism")
"""Events of which rank 0's are enough."""
NEWS = ("straggler", "suspect_result", "checkpoint_failed", "node_excluded", "not_working", "ranks_lost")

HERE = evidence.machine()
DEFAULT = {"node": "", "span_s": 0.0}
"""For what only newer events tell."""

Key = tuple[str, int, int]
"""Attempt, cycle, and life in the process."""


@dataclasses.dataclass
class Start:
    """Times are seconds since the epoch; inf or -inf: has not happened."""

    attempt: str
    cycle: int
    life: int
    began: float = math.inf
    in_session: float = -math.inf
    running: float = -math.inf
    last: float = -math.inf
    noticed: float = math.inf
    """When the first rank has learned that the end is announced."""
    saving_s: float = 0.0
    world_size: int = 0
    ranks: int = 0
    """Those that have told that they started."""
    nodes: set[str] = dataclasses.field(default_factory=set)
    resumed: int | None = None
    newest: int | None = None
    """The last step that is known to be done."""
    durable: deque[tuple[int, float]] = dataclasses.field(default_factory=lambda: deque(maxlen=KEPT_CHECKPOINTS))
    left: str | None = None
    """Why all ranks have ended together."""
    left_at: float = -math.inf
    """When the last of them had nothing more to do than to end its process."""
    ends: RankEnds = dataclasses.field(default_factory=lambda: RankEnds(KEPT_ENDS))
    processes: set[tuple[int, int]] = dataclasses.field(default_factory=set)
    """Launchers and ranks: number and begin, as in ``evidence``."""
    is_here: bool = True
    """Whether all those processes are of this machine, as far as anybody has told."""
    before: Hindmost = dataclasses.field(default_factory=Hindmost)
    """What ranks of this start say of the end of their previous life."""
    injected: list[Event] = dataclasses.field(default_factory=list)
    news: list[Event] = dataclasses.field(default_factory=list)
    is_watched: bool = False
    """Whether hangs are detected, so that each rank keeps a record of what it does."""
    looks_for_stragglers: bool | None = None
    """None: an older runtime has not told."""
    straggler_reports: int = 0

    @property
    def is_running(self) -> bool:
        """Whether a step was done."""
        return self.running > -math.inf

    @property
    def keeps_records(self) -> bool:
        """Whether its ranks have come to where they take over the records of the start before."""
        return self.in_session > -math.inf or self.is_running

    @property
    def has_told(self) -> bool:
        """Whether its ranks have said all that they know of the start before: that comes ahead of the first step."""
        return self.is_running or self.resumed is not None or self.ends.last > -math.inf

    @functools.cached_property
    def is_gone(self) -> bool:
        """Whether launcher and ranks are known to have ended; on another machine nobody can know."""
        known = self.is_here and self.processes
        return bool(known) and all(evidence.started(pid) != began for pid, began in self.processes)

    @functools.cached_property
    def is_there(self) -> bool:
        """Whether launcher or ranks are known to run."""
        return self.is_here and bool(self.processes) and not self.is_gone

    @property
    def newest_durable(self) -> tuple[int, float] | None:
        return self.durable[-1] if self.durable else None

    @property
    def committed(self) -> int:
        """The steps that each rank has done, since all of them commit a checkpoint together."""
        return self.durable[-1][0] if self.durable else 0

    def durable_at(self, step: int) -> float | None:
        """When the checkpoint of ``step`` was safe."""
        return next((time for each, time in self.durable if each == step), None)

    def add(self, event: Event) -> None:
        """Take in one event of any rank."""
        name = event["event"]
        if name != "node_excluded":  # told by the batch script, after the end
            self.last = max(self.last, event["time"])
        method = getattr(self, f"_on_{name}", None)
        if method is not None:
            method(event)
        elif name in NEWS and len(self.news) < KEPT_NEWS:
            self.news.append(event)
        elif is_deliberate(name):
            self.left = name if name != "results_stop" else event["reason"]
            self.left_at = max(self.left_at, event["time"])
            self.newest = event.get("step", self.newest)

    def _on_rank_started(self, event: Event) -> None:
        self.began = min(self.began, event["time"])
        self.ranks += 1
        self.nodes.add(event["node"])
        self.is_here = self.is_here and event.get("machine") == HERE is not None
        if self.is_here:
            self.processes.update((pid, began) for pid, began in event["processes"])

    def _on_life_began(self, event: Event) -> None:
        self.began = min(self.began, event["time"])

    def _on_session_started(self, event: Event) -> None:
        self.began = min(self.began, event["time"])
        self.in_session = max(self.in_session, event["time"])
        self.world_size = max(self.world_size, event["world_size"])
        self.looks_for_stragglers = event.get("stragglers", self.looks_for_stragglers)
        self.nodes.add(event["node"])

    def _on_resumed(self, event: Event) -> None:
        self.resumed = event["step"] or 0
        self.newest = max(self.newest or 0, self.resumed)
        if event["rank"] == 0 and event["tier"] == "global":
            self.durable.append((self.resumed, event["time"]))

    def _on_first_step(self, event: Event) -> None:
        self.running = max(self.running, event["time"])
        self.newest = max(self.newest or 0, event["step"] + 1)

    def _on_session_failed(self, event: Event) -> None:
        if event.get("step") is not None:
            self.newest = max(self.newest or 0, event["step"])

    _on_life_failed = _on_session_failed

    def _on_progress(self, event: Event) -> None:
        self.newest = max(self.newest or 0, event["step"])

    def _on_timeouts(self, event: Event) -> None:
        self.is_watched = True

    def _on_straggler_report(self, event: Event) -> None:
        self.straggler_reports += event["rank"] == 0

    def _on_checkpoint_scheduled(self, event: Event) -> None:
        if event["rank"] == 0:
            self.saving_s += event["seconds"]

    def _on_checkpoint(self, event: Event) -> None:
        self.newest = max(self.newest or 0, event["step"])
        if event["rank"] == 0 and event["tier"] != "local":
            self.durable.append((event["step"], event["time"]))
        if event["rank"] == 0 and event["written"] and not event.get("scheduled"):
            self.saving_s += event["seconds"]

    def _on_preemption_notice(self, event: Event) -> None:
        self.noticed = min(self.noticed, event["time"])

    def _on_fault_injected(self, event: Event) -> None:
        if len(self.injected) < KEPT_NEWS:
            self.injected.append(event)
        if event["kind"] == "preempt" and len(self.news) < KEPT_NEWS:
            self.news.append(event)  # where all ranks leave together, no failure tells of it

    def _on_last_life(self, event: Event) -> None:
        fields = {field.name: event.get(field.name, DEFAULT.get(field.name)) for field in dataclasses.fields(Sign)}
        self.before.add(Sign(**fields))


def read_starts(files: Iterable[EventFile], last: Iterable[Doing] = ()) -> list[Start]:
    """All starts of the job that these files tell of, in order of time, in one pass.

    Args:
        last: what the ranks said last of themselves; nobody else tells of a hang that ended the job.
    """
    starts: dict[Key, Start] = {}
    for file in files:
        _take_in(file, starts)
    ordered = sorted((each for each in starts.values() if each.began < math.inf), key=lambda each: each.began)
    _tell_of_hangs(ordered, last)
    for each, later in itertools.zip_longest(ordered, ordered[1:]):
        for event in each.injected:
            each.ends.injected(event)
        each.ends.close(is_last=later is None and not each.is_gone, left=each.left)
    return ordered


def _take_in(file: EventFile, starts: dict[Key, Start]) -> None:
    scheduled: set[tuple[int, str]] = set()
    for key, event in _keyed(file) if file.rank is not None else _from_outside(file, starts):
        start = starts.get(key) or starts.setdefault(key, Start(*key))
        if event["event"] == "checkpoint_scheduled":
            scheduled.add((event["step"], event["tier"]))
        elif event["event"] == "checkpoint" and (event["step"], event["tier"]) in scheduled:
            scheduled.discard((event["step"], event["tier"]))
            event["scheduled"] = True
        start.add(event)
        if file.rank is not None:
            start.ends.add(event)


def _keyed(file: EventFile) -> Iterator[tuple[Key, Event]]:
    """The events of a rank with the start that they belong to.

    Starts are counted here: each launcher of NVRx 0.4.1 counts its own restarts, so ``cycle`` differs by node.
    """
    life, cycle, has_stub = 0, -1, False
    for event in events_of(file, leave_out=OF_ALL_RANKS_ALIKE if file.rank else ()):
        if event["event"] == "rank_started":
            life, cycle, has_stub = 0, cycle + 1, True
        elif event["event"] == "session_started" and not has_stub:
            cycle += 1
        elif event["event"] == "life_began":
            life = event["iteration"]
        yield (file.attempt, max(0, cycle), life), event


def _from_outside(file: EventFile, starts: dict[Key, Start]) -> Iterator[tuple[Key, Event]]:
    """What the batch script and the command line tell, of the start that began last before it."""
    for event in events_of(file):
        begun = [each for each in starts.values() if each.attempt == file.attempt and each.began <= event["time"]]
        if begun:
            last = max(begun, key=lambda each: each.began)
            yield (last.attempt, last.cycle, last.life), event


def _tell_of_hangs(starts: list[Start], last: Iterable[Doing]) -> None:
    """A record stays that of the start before until the rank's new process has a session, or a step without one."""
    own, before = Hindmost(), None
    for sign in (each.sign for each in last if starts and each.sign is not None):
        (own if sign.since >= starts[-1].began else starts[-1].before).add(sign)
    for start in starts:
        is_last = start is starts[-1]
        if before is not None:
            more = is_last and before.is_watched and not start.has_told
            before.ends.hung(start.before, done=before.committed, more=more, is_last=False)
        before = start if start.keeps_records else before
    if starts:
        starts[-1].ends.hung(own, done=starts[-1].committed, more=False, is_last=not starts[-1].is_gone)
