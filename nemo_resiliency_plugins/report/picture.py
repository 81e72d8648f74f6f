"""The timeline as a picture, drawn by matplotlib."""

from __future__ import annotations

from pathlib import Path

from nemo_resiliency_plugins.errors import NotWorkingError
from nemo_resiliency_plugins.report.summary import Report
from nemo_resiliency_plugins.report.timeline import CHECKPOINT, FAULT, FOLLOWED, SETUP, STARTUP, STEPS, Lane
from nemo_resiliency_plugins.report.words import counted

COLOURS = {STARTUP: "#b9bbc6", SETUP: "#8da4ef", STEPS: "#46a758", CHECKPOINT: "#ffc53d"}
COLOURS |= {FOLLOWED: "#f4b8ba", FAULT: "#e5484d"}
INCHES, INCHES_A_LANE = 12.0, 0.3


def draw(report: Report, lanes: list[Lane], path: Path) -> None:
    """Write the picture to ``path``.

    Raises:
        NotWorkingError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError as error:
        remedy = "pip install 'nemo-resiliency-plugins[report]'"
        raise NotWorkingError(f"--png needs matplotlib: {remedy}") from error
    figure = Figure(figsize=(INCHES, 1.8 + INCHES_A_LANE * len(lanes)), layout="constrained")
    axes = figure.subplots()
    for row, lane in enumerate(lanes):
        for kind in COLOURS:
            found = [segment for segment in lane.segments if segment.kind == kind]
            spans = [(each.begin, max(each.end - each.begin, report.wall_s / 1000)) for each in found]
            axes.broken_barh(spans, (row - 0.35, 0.7), facecolors=COLOURS[kind])
    axes.set_yticks(range(len(lanes)), [f"rank {lane.rank}" for lane in lanes])
    axes.invert_yaxis()
    axes.set_xlabel("seconds since the begin of the job")
    axes.set_title(f"{report.state}, goodput {report.goodput:.1%}, {counted(len(report.failures), 'failure')}")
    handles = [Patch(color=colour, label=kind) for kind, colour in COLOURS.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    figure.savefig(path, format="png", dpi=120)
