"""The report as one HTML page that needs nothing else: no script, no font, no request."""

from __future__ import annotations

import datetime
import functools
import importlib.resources

import jinja2

from nemo_resiliency_plugins.report import text, words
from nemo_resiliency_plugins.report.summary import Report
from nemo_resiliency_plugins.report.timeline import KINDS, Lane

TEMPLATE = "page.html.j2"
WIDTH, ROW, LABEL, AXIS = 1000, 20, 70, 22
"""Of the drawing, in its own units, which the page scales."""
TICKS = 8


def page(report: Report, lanes: list[Lane]) -> str:
    """The whole page."""
    return _template().render(
        report=report,
        lanes=lanes,
        kinds=KINDS,
        began=datetime.datetime.fromtimestamp(report.began).isoformat(" ", "seconds"),
        duration=words.duration,
        counted=words.counted,
        secondary=text.secondary,
        seconds=[(cause, seconds) for cause, seconds in report.seconds.items() if seconds],
        scale=(WIDTH - LABEL) / report.wall_s if report.wall_s else 0,
        ticks=[report.wall_s * tick / TICKS for tick in range(TICKS + 1)],
        box={"width": WIDTH, "row": ROW, "label": LABEL, "height": ROW * len(lanes) + AXIS},
    )


@functools.cache
def _template() -> jinja2.Template:
    made = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    source = importlib.resources.files("nemo_resiliency_plugins.report").joinpath(TEMPLATE)
    return made.from_string(source.read_text())
