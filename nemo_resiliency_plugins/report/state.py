"""How a job stands, fast enough to be asked every few seconds while it runs."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

from nemo_resiliency_plugins.report.reading import Doing, EventFile, doings, event_files, newest_policy
from nemo_resiliency_plugins.report.summary import Failure, Report, summarize

MOST_FILES = 2048
"""Event files that are read; of older attempts only the number is told."""


@dataclasses.dataclass(frozen=True)
class State:
    """``quiet_s``: seconds without any news; ``left_out``: older attempts that were not read."""

    directory: str
    state: str
    is_well: bool
    is_over: bool
    step: int | None
    durable: int | None
    world_size: int
    nodes: int
    attempts: int
    left_out: int
    cycles: int
    goodput: float
    wall_s: float
    quiet_s: float
    sections: dict[str, int]
    longest: str
    """The rank that has said nothing new for longest, which is the one that hangs if any does."""
    failures: list[Failure]
    policy: dict[str, object]
    news: list[str]


def state_of(directory: Path, now: float | None = None) -> State:
    """Read the newest attempts of the job in this ``nrp`` directory."""
    now = time.time() if now is None else now
    files = event_files(directory)
    names = list(dict.fromkeys(file.attempt for file in files))
    chosen = newest(files)
    report = summarize(directory, now, chosen)
    at_work = [each for each in doings(directory) if each.ended is None]
    step = max([report.step or 0, *(each.step for each in at_work)])
    read = len({file.attempt for file in chosen})
    return State(
        directory=str(directory),
        state=report.state,
        is_well=report.is_well,
        is_over=report.is_over,
        step=step if report.starts else None,
        durable=report.durable,
        world_size=report.world_size,
        nodes=report.nodes,
        attempts=len(names),
        left_out=len(names) - read,
        cycles=len(report.starts),
        goodput=report.goodput,
        wall_s=report.wall_s,
        quiet_s=quiet_s(report, [each.since for each in at_work], now),
        sections=_sections([each.section for each in at_work]),
        longest=_longest(at_work, now),
        failures=report.failures,
        policy=newest_policy(directory),
        news=report.news,
    )


def newest(files: list[EventFile]) -> list[EventFile]:
    """The files of the newest attempts, as many as may be read, and of one attempt at least."""
    chosen: list[EventFile] = []
    for attempt in reversed(list(dict.fromkeys(file.attempt for file in files))):
        more = [file for file in files if file.attempt == attempt]
        if chosen and len(chosen) + len(more) > MOST_FILES:
            break
        chosen = more + chosen
    return chosen


def quiet_s(report: Report, said: list[float], now: float) -> float:
    """Seconds since any rank has told anything."""
    return max(0.0, now - max([report.last_news, *said]))


def _longest(at_work: list[Doing], now: float) -> str:
    if not at_work:
        return ""
    doing = min(at_work, key=lambda each: each.since)
    limit = "none" if doing.limit_s is None else f"{doing.limit_s:g} s"
    return f"rank {doing.rank} in {doing.section.replace('_', ' ')} for {now - doing.since:.1f} s, limit {limit}"


def _sections(names: list[str]) -> dict[str, int]:
    return {name: names.count(name) for name in sorted(set(names))}
