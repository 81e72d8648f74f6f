"""The report of a job: what went wrong first and what it cost, start by start, and where the time went."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable
from pathlib import Path

from nemo_resiliency_plugins.report.accounting import Cause, Piece, end_of, fault_began, pieces_of, share
from nemo_resiliency_plugins.report.endings import End
from nemo_resiliency_plugins.report.news import about_stragglers, news_of
from nemo_resiliency_plugins.report.reading import EventFile, doings, event_files
from nemo_resiliency_plugins.report.standing import BAD, OVER, RUNNING, is_for_good, since_the_last_start, state_of
from nemo_resiliency_plugins.report.starts import Start, read_starts
from nemo_resiliency_plugins.report.words import counted

COST = (Cause.DETECTION, Cause.AGAIN)
COST_OF_NEXT = (Cause.RESTART, Cause.AWAITING, Cause.STARTUP, Cause.SETUP)


@dataclasses.dataclass(frozen=True)
class Failure:
    """``first`` ended a start; ``cost_s`` are the seconds until the job was where it had been, without them."""

    start: int
    key: tuple[str, int, int]
    """Attempt, cycle and life of that start: which one it is, however many attempts are read."""
    first: End
    others: int
    secondary: list[End]
    resumed: int | None
    steps_again: int | None
    cost_s: float
    done: str
    began: float
    """When the first rank went wrong, in seconds since the epoch."""
    is_paid: bool
    """Whether more is not to be added to the cost."""

    def __str__(self) -> str:
        """One line: what happened, where, what was done, what it cost."""
        again = f", {counted(self.steps_again, 'step')} done again" if self.steps_again else ""
        cost = f"; cost {self.cost_s:.1f} s{'' if self.is_paid else ' so far'}{again}"
        return f"{self.first.place}: {self.first}; {self.done}{cost}"


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
    stragglers: str
    """Whether slow ranks were looked for, and what was found."""
    last_news: float
    """In seconds since the epoch."""
    is_over: bool
    """Whether nothing more is to come."""

    @property
    def is_well(self) -> bool:
        """Whether the job runs, waits for its next start, or has come to a good end."""
        return not self.state.startswith(BAD)

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
    state = state_of(directory, starts, now)
    for_good = is_for_good(state, starts)
    pieces = [
        pieces_of(start, before, starts[index:], now if state == RUNNING and start is starts[-1] else end_of(start))
        for index, (before, start) in enumerate(zip([None, *starts], starts, strict=False), 1)
    ]
    pieces.append(since_the_last_start(state, starts, now))
    every = [piece for each in pieces for piece in each]
    began = starts[0].began if starts else now
    durable = [each.newest_durable[0] for each in starts if each.newest_durable]
    return Report(
        directory=str(directory),
        state=state,
        began=began,
        wall_s=sum(seconds for _, seconds in every),
        goodput=share(every, Cause.STEPS),
        world_size=max((max(start.world_size, start.ranks) for start in starts), default=0),
        nodes=max((len(start.nodes) for start in starts), default=0),
        step=next((each.newest for each in reversed(starts) if each.newest is not None), None),
        durable=max(durable, default=None),
        attempts=len({start.attempt for start in starts}),
        seconds={cause.value: sum(seconds for each, seconds in every if each is cause) for cause in Cause},
        failures=[_failure(index, starts, pieces, for_good) for index, each in enumerate(starts) if each.ends.first],
        starts=[_line(start, began) for start in starts],
        news=list(news_of(starts)),
        stragglers=about_stragglers(starts),
        last_news=end_of(starts[-1]) if starts else now,
        is_over=for_good or state.startswith(OVER),
    )


def _failure(index: int, starts: list[Start], pieces: list[list[Piece]], for_good: bool) -> Failure:
    start, after = starts[index], starts[index + 1] if index + 1 < len(starts) else None
    assert start.ends.first is not None
    cost = sum(seconds for cause, seconds in pieces[index] if cause in COST)
    cost += sum(seconds for cause, seconds in pieces[index + 1] if cause in COST_OF_NEXT)
    resumed = after.resumed if after else None
    reached = start.newest if start.ends.first.step is None else max(start.ends.first.step, start.newest or 0)
    again = max(0, reached - resumed) if resumed is not None and reached is not None else None
    secondary = start.ends.secondary()
    is_paid = for_good or index + 2 < len(starts) or (after is not None and after.is_running)
    done = _done(start, after, is_paid)
    told = (max(0, start.ends.failed - 1), secondary, resumed, again, cost, done, fault_began(start), is_paid)
    return Failure(index, (start.attempt, start.cycle, start.life), start.ends.first, *told)


def _done(start: Start, after: Start | None, is_paid: bool) -> str:
    if after is None:
        return "not started again" if is_paid else "not started again so far"
    how = "started again in the job" if start.attempt == after.attempt else "started again by a new attempt"
    if start.attempt == after.attempt and start.cycle == after.cycle:
        how = "started again in the process"
    if after.resumed is None:
        return f"{how}, from no checkpoint" if after.is_running else f"{how}, not resumed{'' if is_paid else ' so far'}"
    return f"{how}, resumed from step {after.resumed}" if after.resumed else f"{how} from step 0"


def _line(start: Start, began: float) -> StartLine:
    if start.ends.first is not None:
        how = f"{start.ends.first.place}: {start.ends.first.what}"
    else:
        how = (start.left or "no end").replace("_", " ")
    end = end_of(start)
    key = (start.attempt, start.cycle, start.life)
    return StartLine(*key, start.began - began, end - began, start.resumed, start.newest, how)
