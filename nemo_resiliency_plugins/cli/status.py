"""``nemo-resiliency status``: how a job stands, here or on a cluster, once or until it ends."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from nemo_resiliency_plugins.cli import remote
from nemo_resiliency_plugins.cli.console import console
from nemo_resiliency_plugins.report.reading import find_job
from nemo_resiliency_plugins.report.state import State, state_of
from nemo_resiliency_plugins.report.words import counted, duration

SHOWN_FAILURES = 8
OTHER_LINES, LINES_A_FAILURE = 9, 6
"""What a screen has to hold besides, and for a failure with a piece of news, where the lines are wrapped."""

Look = Callable[[], State]
Directory = Annotated[
    str, typer.Argument(metavar="DIR", help="the job's directory, or one above it that holds one job")
]
Host = Annotated[str | None, typer.Option(metavar="USER@LOGIN", help="read DIR there, by ssh")]
Ssh = Annotated[str, typer.Option(help="the ssh command for --host, with its options")]


def status(
    directory: Directory,
    watch: Annotated[bool, typer.Option("--watch", help="go on until the job ends")] = False,
    every: Annotated[float, typer.Option(min=0.2, help="seconds between two looks of --watch")] = 2.0,
    as_json: Annotated[bool, typer.Option("--json", help="for programs")] = False,
    host: Host = None,
    ssh: Ssh = "ssh",
) -> None:
    """Attempts, faults and progress of a job. Exit code 1: it has failed, or nothing is heard of it.

    Example: nemo-resiliency status /shared/me/experiments/train/train_123/train --host me@login --watch
    """

    def look() -> State:
        return state_of(located(directory, host, ssh))

    if not watch:
        state = look()
        console().print(_json(state) if as_json else in_lines(state), soft_wrap=as_json)
    elif as_json or not console().is_terminal:
        state = _follow_in_lines(look, every, as_json)
    else:
        state = _follow_live(look, every)
    raise typer.Exit(0 if state.is_well else 1)


def located(directory: str, host: str | None, ssh: str) -> Path:
    """The ``nrp`` directory of the job, on this machine or copied to it."""
    return find_job(Path(directory).expanduser() if host is None else remote.mirror(host, directory, ssh))


def in_lines(state: State, most: int = SHOWN_FAILURES) -> Group:
    """What a person reads, a fact a line; of failures and news the newest ``most``."""
    return Group(*(Text(line) for line in _lines(state, most)))


def headline(state: State) -> str:
    """State and progress in one line."""
    step = "none" if state.step is None else state.step
    saved = "none" if state.durable is None else state.durable
    quiet = f", last news {duration(state.quiet_s)} ago" if not state.is_over else ""
    return f"{state.state}: step {step}, checkpoint {saved}, {counted(len(state.failures), 'failure')}{quiet}"


def _lines(state: State, most: int) -> list[str]:
    lines = [state.directory, headline(state)]
    lines.append(f"ranks: {state.world_size} on {counted(state.nodes, 'node')}")
    older = f" ({state.left_out} older ones not read: see report)" if state.left_out else ""
    lines.append(f"attempts: {state.attempts}{older}, starts of the ranks: {state.cycles}")
    lines.append(f"time: {duration(state.wall_s)}, goodput {state.goodput:.1%}")
    if state.sections and not state.is_over:
        told = (f"{count} in {name.replace('_', ' ')}" for name, count in state.sections.items())
        lines.append(f"ranks now: {', '.join(told)}; longest: {state.longest}")
    if state.policy:
        kept = {name: state.policy.get(name) for name in ("failures", "attempts", "idle", "excluded", "next", "why")}
        lines.append(
            "policy: " + ", ".join(f"{name} {value}" for name, value in kept.items() if value not in ("", None))
        )
    if len(state.failures) > most:
        lines.append(f"{counted(len(state.failures) - most, 'earlier failure')} not shown: see report")
    lines.extend(f"failure: {failure}" for failure in state.failures[-most:])
    lines.extend(f"news: {text}" for text in state.news[-most:])
    return lines


def _json(state: State) -> Text:
    return Text(json.dumps(dataclasses.asdict(state)))


def _follow_live(look: Look, every: float) -> State:
    state, out = look(), console()
    with Live(in_lines(state, _room(out)), console=out, auto_refresh=False) as live:
        while not state.is_over:
            time.sleep(every)
            state = look()
            live.update(in_lines(state, _room(out)), refresh=True)
        live.update(in_lines(state))
    return state


def _room(out: Console) -> int:
    """Failures that fit on the screen, since what goes below it cannot be drawn again."""
    return min(SHOWN_FAILURES, max(1, (out.height - OTHER_LINES) // LINES_A_FAILURE))


def _follow_in_lines(look: Look, every: float, as_json: bool) -> State:
    """A line for each change, for a pipe; the cost of a failure alone is none before it is settled."""
    out = console()
    told: dict[object, object] = {}
    while True:
        state: State = look()
        for what, (seen, line) in _in_pipe(state, as_json):
            if told.get(what) != seen:
                out.print(Text(line), soft_wrap=True)
                told[what] = seen
        if state.is_over:
            return state
        time.sleep(every)


def _in_pipe(state: State, as_json: bool) -> Iterator[tuple[object, tuple[object, str]]]:
    """What a line is about, what of it has to change for it to be told again, and the line."""
    if as_json:
        line = json.dumps(dataclasses.asdict(state))
        yield "state", (line, line)
        return
    for failure in state.failures:
        yield failure.key, ((failure.first.place, str(failure.first), failure.is_paid), f"failure: {failure}")
    for text in state.news:
        yield text.partition(";")[0], (True, f"news: {text}")  # what follows goes on with each report
    line = headline(state).partition(", last news")[0]
    yield "state", (line, line)
