"""What happened in a job beside its failures, a line each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nemo_resiliency_plugins.evidence import one_of
from nemo_resiliency_plugins.report.endings import ENDING_FAULTS
from nemo_resiliency_plugins.report.reading import Event
from nemo_resiliency_plugins.report.starts import Start
from nemo_resiliency_plugins.report.words import counted

SHOWN = 8
NOT_TOLD = ("event", "time", "attempt", "cycle")


def news_of(starts: Sequence[Start]) -> Iterator[str]:
    """In order of time."""
    for start in starts:
        told: set[object] = set()
        disturbing = [event for event in start.injected if _is_told_here(event, start)]
        for event in sorted([*start.news, *disturbing], key=lambda event: float(event["time"])):
            if event["event"] == "fault_injected":
                yield _of_injected(event, starts)
            elif event["event"] != "straggler":
                yield _in_words(event)
            elif event["slow_rank"] not in told:
                told.add(event["slow_rank"])
                yield _of_straggler([each for each in start.news if each.get("slow_rank") == event["slow_rank"]])


def about_stragglers(starts: Sequence[Start]) -> str:
    """Whether slow ranks are looked for, and what was found."""
    if not any(start.looks_for_stragglers for start in starts):
        return "straggler detection is off: slow ranks are not looked for"
    reports = counted(sum(start.straggler_reports for start in starts), "straggler report")
    slow = {(event["slow_rank"], event["node"]) for start in starts for event in start.news if "slow_rank" in event}
    found = ", ".join(f"rank {rank} on {node}" for rank, node in sorted(slow)[:SHOWN])
    return f"{reports}, slow: {found or 'none'}"


def _is_told_here(event: Event, start: Start) -> bool:
    """The failure tells of a fault that ends a rank as soon as there is one; what preempts is among the news."""
    return event["kind"] not in ENDING_FAULTS or (start.ends.first is None and event["kind"] != "preempt")


def _in_words(event: Event) -> str:
    fields = {name: value for name, value in event.items() if name not in NOT_TOLD}
    rank = fields.pop("rank", None)
    who = f"rank {rank}: " if rank is not None else ""
    told = ", ".join(f"{name}={value}" for name, value in fields.items() if value not in (None, "", [], {}))
    return f"{who}{event['event'].replace('_', ' ')}: {told}"


def _of_straggler(verdicts: Sequence[Event]) -> str:
    """Of one rank in one start: its lowest score of each kind."""
    first, last = verdicts[0], verdicts[-1]
    worst: dict[str, float] = {}
    for kind, score in ((kind, score) for each in verdicts for kind, score in each["scores"].items()):
        worst[kind] = min(score, worst.get(kind, score))
    scores = ", ".join(f"{kind.replace('_', ' ')} {score:.2f}" for kind, score in worst.items())
    steps = f"step {first['step']}" if first is last else f"steps {first['step']} to {last['step']}"
    phase = f", slowest in {last['phase']}" if last["phase"] else ""
    place = one_of([(first["slow_rank"], first["node"])])
    count = counted(len(verdicts), "straggler report")
    return f"{place}: slow in {count}, {steps}{phase}; score {scores} (0.50 takes twice the time of the others)"


def _of_injected(event: Event, starts: Sequence[Start]) -> str:
    step = "" if event["step"] is None else f" at step {event['step']}"
    told = f"{one_of([(event['rank'], event.get('node', ''))])}: injected: {event['kind']}{step}"
    if event["kind"] != "slow":
        return told
    slow = f", {event['seconds']:g} s in each of {counted(event['steps'], 'step')}"
    return f"{told}{slow}; {about_stragglers(starts)}"
