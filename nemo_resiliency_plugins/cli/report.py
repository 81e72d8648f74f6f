"""``nemo-resiliency report``: what happened to a job, after the fact."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from nemo_resiliency_plugins.cli.console import console, rows, table
from nemo_resiliency_plugins.cli.places import written_to
from nemo_resiliency_plugins.cli.status import Directory, Host, Ssh, located
from nemo_resiliency_plugins.errors import ConfigError
from nemo_resiliency_plugins.report import text
from nemo_resiliency_plugins.report.summary import Report, summarize
from nemo_resiliency_plugins.report.timeline import Lane, chosen_ranks, lanes
from nemo_resiliency_plugins.report.words import duration

MOST_STARTS = 40
CHART_WIDTH = 100
REMEDY = "Name a file in a directory that is there, and where you may write."


def report(
    directory: Directory,
    html: Annotated[Path | None, typer.Option(help="write a page that needs nothing else to this file")] = None,
    png: Annotated[Path | None, typer.Option(help="write the timeline as a picture; needs the extra 'report'")] = None,
    ranks: Annotated[int, typer.Option(min=1, help="lanes of the timeline, those that failed first")] = 16,
    as_json: Annotated[bool, typer.Option("--json", help="for programs")] = False,
    host: Host = None,
    ssh: Ssh = "ssh",
) -> None:
    """Timeline, first failure, goodput and lost time of a job. Exit code 1: it has not come to a good end.

    Example: nemo-resiliency report experiments/train/train_123 --html report.html
    """
    if png is not None and png.suffix.lower() != ".png":
        raise ConfigError("--png", str(png), "is to be the name of a PNG file", "Give a name that ends with .png.")
    found = located(directory, host, ssh)
    told = summarize(found)
    shown = lanes(found, told, chosen_ranks(told, ranks))
    if html is not None:
        from nemo_resiliency_plugins.report.page import page

        whole = page(told, shown)
        with written_to("--html", html, REMEDY):
            html.write_text(whole)
        _say_where(html, as_json)
    if png is not None:
        from nemo_resiliency_plugins.report.picture import draw

        with written_to("--png", png, REMEDY):
            draw(told, shown, png)
        _say_where(png, as_json)
    if as_json:
        typer.echo(json.dumps({**dataclasses.asdict(told), "timeline": [dataclasses.asdict(lane) for lane in shown]}))
    else:
        _print(told, shown)
    raise typer.Exit(0 if told.is_well else 1)


def _say_where(file: Path, as_json: bool) -> None:
    typer.echo(f"written: {file.absolute()}", err=as_json)


def _print(told: Report, shown: list[Lane]) -> None:
    out = console()
    for line in (*text.heading(told), "", *text.failures(told)):
        _line(out, line)
    _line(out, "")
    out.print(_seconds(told))
    _line(out, "")
    out.print(_starts(told))
    if len(told.starts) > MOST_STARTS:
        _line(out, f"the last {MOST_STARTS} of {len(told.starts)} starts; --json and --html have all of them")
    _line(out, "")
    for line in text.chart(shown, told.wall_s, _chart_width()):
        _line(out, line)
    for line in told.news:
        _line(out, f"news: {line}")


def _chart_width() -> int:
    """Of the terminal what the names of the ranks leave; a pipe has no width of its own."""
    return max(20, min(CHART_WIDTH, shutil.get_terminal_size((CHART_WIDTH, 0)).columns - 12))


def _line(out: Console, line: str) -> None:
    out.print(line, markup=False, soft_wrap=True)


def _seconds(told: Report) -> object:
    made = table("time went to", "seconds", "share")
    for cause, seconds in told.seconds.items():
        if seconds:
            rows(made, cause, f"{seconds:.1f}", f"{seconds / told.wall_s:.1%}")
    return made


def _starts(told: Report) -> object:
    made = table("start", "attempt", "from", "to", "steps", "ended by")
    first = max(0, len(told.starts) - MOST_STARTS)
    for number, start in enumerate(told.starts[first:], first):
        life = f".{start.life}" if start.life else ""
        steps = (
            f"{'?' if start.from_step is None else start.from_step}-{'?' if start.to_step is None else start.to_step}"
        )
        times = (duration(start.began_s), duration(start.ended_s))
        rows(made, number, f"{start.attempt} cycle {start.cycle}{life}", *times, steps, start.how)
    return made
