"""The report of a job: what went wrong first and what it cost, start by start, and where the time went."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable
from pathlib import Path

from nemo_resiliency_plugins.report.accounting import Cause, Piece, end_of, pieces_of, share
from nemo_resiliency_plugins.report.endings import End
from nemo_resiliency_plugins.report.reading import Event, EventFile, doings, event_files, newest_policy
from nemo_resiliency_plugins.report.starts import Start, read_starts

QUIET_S = 60.0
"""Without any news for so long, and without an end, nobody can say that the job runs."""
BAD = ("failed", "no news", "not started", "ended", "validation failed")
OVER = ("finished", "failed", "ended", "validation failed")
FOR_GOOD = ("stop", "leave")
"""What the batch script does when there is to be no further attempt."""
COST = (Cause.DETECTION, Cause.AGAIN)
COST_OF_NEXT = (Cause.RESTART, Cause.AWAITING, Cause.STARTUP, Cause.SETUP)


@dataclasses.dataclass(frozen=True)
class Failure:
    """``first`` ended a start; ``cost_s`` are the seconds until the job was where it had been, without them."""

    start: int
    first: End
    others: int
    secondary: list[End]
    resumed: int | None
    steps_again: int | None
    cost_s: float
    done: str

    def __str__(self) -> str:
        """One line: what happened, where, what was done, what it cost."""
        injected = f" (injected: {self.first.injected})" if self.first.injected else ""
        at = f" at step {self.first.step}" if self.first.step is not None else ""
        again = f", {self.steps_again} steps done again" if self.steps_again else ""
        cost = f"; cost {self.cost_s:.1f} s{again}"
        return f"{self.first.place}: {self.first.what}{injected}{at}; {self.done}{cost}"


@dataclasses.dataclass(frozen=True)
class StartLine:
    """One start of the ranks. Times are seconds since the begin of the job."""

    attempt: str
    cycle: int
    life: int
    began_s: float
    ended_s: float
    from_step: int | None
    to_step: int | None
    how: str


@dataclasses.dataclass(frozen=True)
class Report:
    """``goodput`` is the part of the wall time that was spent in steps which counted, from 0 to 1."""

    directory: str
    state: str
    began: float
    wall_s: float
    goodput: float
    world_size: int
    nodes: int
    step: int | None
    durable: int | None
    attempts: int
    seconds: dict[str, float]
    failures: list[Failure]
    starts: list[StartLine]
    news: list[str]

    @property
    def is_well(self) -> bool:
        """Whether the job runs, waits for its next start, or has come to a good end."""
        return not self.state.startswith(BAD)

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to come."""
        return self.state.startswith(OVER)

    @property
    def first_failure(self) -> Failure | None:
        return self.failures[0] if self.failures else None


def summarize(directory: Path, now: float | None = None, files: Iterable[EventFile] | None = None) -> Report:
    """Read the ``nrp`` directory of a job.

    Args:
        now: seconds since the epoch.
        files: those of its event files that are to be read; None: all.
    """
    now = time.time() if now is None else now
    starts = read_starts(event_files(directory) if files is None else files, doings(directory))
    around = list(zip([None, *starts], starts, [*starts[1:], None], strict=False))
    pieces = [pieces_of(start, before, after) for before, start, after in around]
    every = [piece for each in pieces for piece in each]
    began = starts[0].began if starts else now
    durable = [each.newest_durable[0] for each in starts if each.newest_durable]
    return Report(
        directory=str(directory),
        state=state_of(directory, starts, now),
        began=began,
        wall_s=sum(seconds for _, seconds in every),
        goodput=share(every, Cause.STEPS),
        world_size=max((start.world_size for start in starts), default=0),
        nodes=max((len(start.nodes) for start in starts), default=0),
        step=starts[-1].newest if starts else None,
        durable=max(durable, default=None),
        attempts=len({start.attempt for start in starts}),
        seconds={cause.value: sum(seconds for each, seconds in every if each is cause) for cause in Cause},
        failures=[_failure(index, starts, pieces) for index, each in enumerate(starts) if each.ends.first],
        starts=[_line(start, began) for start in starts],
        news=[in_words(event) for start in starts for event in start.news],
    )


def state_of(directory: Path, starts: list[Start], now: float) -> str:
    """One or a few words; see BAD and OVER."""
    policy = newest_policy(directory)
    if not starts:
        return "not started"
    last = starts[-1]
    if last.left in ("finished", "validation_failed"):
        return last.left.replace("_", " ")
    if policy.get("state") == "ended":
        return f"{'ended' if policy.get('action') in FOR_GOOD else 'waits for its next start'}: {policy['why']}"
    if last.left:
        return f"left together: {last.left.replace('_', ' ')}"
    if last.ends.first is not None:
        return "between two starts" if now - end_of(last) < QUIET_S else "failed"
    quiet_s = now - max(end_of(last), max((each.since for each in doings(directory)), default=0.0))
    return "running" if quiet_s < QUIET_S else f"no news for {quiet_s:.0f} s"


def in_words(event: Event) -> str:
    """What an event beside the failures tells, with its place."""
    fields = {name: value for name, value in event.items() if name not in ("event", "time", "attempt", "cycle")}
    rank = fields.pop("rank", None)
    who = f"rank {rank}: " if rank is not None else ""
    told = ", ".join(f"{name}={value}" for name, value in fields.items() if value not in (None, "", [], {}))
    return f"{who}{event['event'].replace('_', ' ')}: {told}"


def _failure(index: int, starts: list[Start], pieces: list[list[Piece]]) -> Failure:
    start, after = starts[index], starts[index + 1] if index + 1 < len(starts) else None
    assert start.ends.first is not None
    cost = sum(seconds for cause, seconds in pieces[index] if cause in COST)
    if after is not None:
        cost += sum(seconds for cause, seconds in pieces[index + 1] if cause in COST_OF_NEXT)
    resumed = after.resumed if after else None
    reached = start.newest if start.ends.first.step is None else max(start.ends.first.step, start.newest or 0)
    again = max(0, reached - resumed) if resumed is not None and reached is not None else None
    secondary = start.ends.secondary()
    done = _done(start, after)
    return Failure(index, start.ends.first, max(0, start.ends.failed - 1), secondary, resumed, again, cost, done)


def _done(start: Start, after: Start | None) -> str:
    if after is None:
        return "not started again so far"
    how = "started again in the job" if start.attempt == after.attempt else "started again by a new attempt"
    if start.attempt == after.attempt and start.cycle == after.cycle:
        how = "started again in the process"
    if after.resumed is None:
        return f"{how}, not resumed so far"
    return f"{how}, resumed from step {after.resumed}" if after.resumed else f"{how} from step 0"


def _line(start: Start, began: float) -> StartLine:
    if start.ends.first is not None:
        how = f"{start.ends.first.place}: {start.ends.first.what}"
    else:
        how = (start.left or "no end").replace("_", " ")
    end = end_of(start)
    key = (start.attempt, start.cycle, start.life)
    return StartLine(*key, start.began - began, end - began, start.resumed, start.newest, how)
