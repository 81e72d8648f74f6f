"""The report as a page and as a picture."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from nemo_resiliency_plugins.contract import Attempt
from nemo_resiliency_plugins.report.page import page
from nemo_resiliency_plugins.report.picture import draw
from nemo_resiliency_plugins.report.summary import Report, summarize
from nemo_resiliency_plugins.report.text import chart
from nemo_resiliency_plugins.report.timeline import Lane, chosen_ranks, lanes
from tests.synthetic import EPOCH, Job

INSTALL_S, RENDER_S = 600, 120
SCREEN = (1200, 900)


class Requests(HTMLParser):
    """Collects what a browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = dict(attrs)
        self.found += [f"{tag} {name}" for name in ("src", "href", "srcset", "data") if name in names]
        if tag in ("script", "link", "iframe", "object", "embed"):
            self.found.append(tag)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    made = Job(tmp_path / "nrp", ranks=4, ranks_per_node=2)
    made.start(0, saves=(5, 10))
    for number in range(4):
        with made.rank(number, Attempt("7")) as rank:
            if number == 2:
                rank.raised(18, "ValueError", "<script>alert('no & no')</script>")
            else:
                rank.lost_a_peer(18.1)
    made.start(22, Attempt("7", cycle=1), resumed=10, saves=(20,), left="finished")
    return made


def shown(job: Job) -> tuple[Report, list[Lane]]:
    report = summarize(job.directory, EPOCH + 1000)
    return report, lanes(job.directory, report, chosen_ranks(report, 16))


def test_the_page_tells_the_cause_and_needs_nothing_else(job: Job) -> None:
    text = page(*shown(job))
    assert "First failure:</b> rank 2 on n1: ValueError: &lt;script&gt;" in text
    assert text.count("secondary: ") == 3
    parser = Requests()
    parser.feed(text)
    assert parser.found == []
    assert not re.search(r"url\(|@import|https?:", text)
    assert "prefers-color-scheme: dark" in text


def test_the_page_of_a_job_without_events_is_a_page(tmp_path: Path) -> None:
    (tmp_path / "nrp" / "events").mkdir(parents=True)
    assert "Nothing: no rank has failed." in page(*shown(Job(tmp_path / "nrp")))


def test_each_lane_shows_its_ranks_phases_in_order(job: Job) -> None:
    _, found = shown(job)
    assert [lane.rank for lane in found] == [0, 1, 2, 3]
    phases = [segment.kind for segment in found[2].segments if segment.kind != "checkpoint"]
    assert phases == ["start-up", "set-up", "steps", "fault", "start-up", "set-up", "steps"]
    assert [round(segment.begin) for segment in found[2].segments if segment.kind == "checkpoint"] == [10, 15, 37]


def test_the_fault_stands_on_the_rank_that_was_killed_from_outside(tmp_path: Path) -> None:
    """Who killed it has noted that; the rank itself can tell nothing, and its peer tells of an error."""
    job = Job(tmp_path / "nrp")
    job.start(0, saves=(5, 10))
    fault = '{"event": "fault_injected", "rank": 1, "attempt": "7-0-0", "cycle": 0, "kind": "kill", "step": null'
    (job.directory / "events" / "7-0-0-requests.jsonl").write_text(f'{fault}, "time": {EPOCH + 17}}}\n')
    with job.rank(1, Attempt("7")) as rank:
        rank.killed(17.1)
    with job.rank(0, Attempt("7")) as rank:
        rank.lost_a_peer(17.5)
    job.start(22, Attempt("7", cycle=1), resumed=10, saves=(20,), left="finished")
    survivor, killed = ([segment.kind for segment in lane.segments] for lane in shown(job)[1])
    assert ("fault" in survivor, "fault" in killed) == (False, True)
    assert ("ended-by-it" in survivor, "ended-by-it" in killed) == (True, False)
    drawn = list(chart(shown(job)[1], 37, 80))
    assert ["X" in line for line in drawn] == [False, True, True]  # the last one is the legend


def test_a_slow_rank_is_marked_and_goes_on(tmp_path: Path) -> None:
    job = Job(tmp_path / "nrp")
    job.start(0)
    with job.rank(0, Attempt("7")) as rank:
        rank.tell(10, "fault_injected", kind="slow", step=5, seconds=1.0, steps=3)
        rank.tell(60, "finished", step=50)
    [(begin, end)] = [(each.begin, each.end) for each in shown(job)[1][0].segments if each.kind == "fault"]
    assert (round(begin), round(end)) == (10, 10)


def test_one_of_a_thing_is_not_told_as_many(job: Job) -> None:
    assert "<b>1</b>failure in 2 starts, 1 attempt<" in page(*shown(job))


def test_ranks_that_failed_are_shown_first(job: Job) -> None:
    report, _ = shown(job)
    assert chosen_ranks(report, 1) == [2]
    assert chosen_ranks(report, 2) == [0, 2]


def test_the_picture_is_one(job: Job, tmp_path: Path) -> None:
    draw(*shown(job), tmp_path / "report.png")
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG\r\n")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_shows_it(job: Job, tmp_path: Path, scheme: str) -> None:
    """A real headless Chromium lays the page out: nothing is cut off, and its picture is not blank."""
    file = tmp_path / "report.html"
    file.write_text(page(*shown(job)))
    dom = chromium(tmp_path, "--dump-dom", str(file), scheme=scheme)
    assert "rank 2 on n1: ValueError: &lt;script&gt;" in dom
    picture = tmp_path / "page.png"
    chromium(tmp_path, f"--screenshot={picture}", str(file), scheme=scheme)
    shades = colours(picture)
    background = max(shades, key=lambda colour: shades[colour])
    assert (sum(background) > 3 * 200) is (scheme == "light")
    assert shades[background] < 0.98 * SCREEN[0] * SCREEN[1], "nothing but background"
    assert len(shades) > 20


def chromium(tmp_path: Path, *arguments: str, scheme: str) -> str:
    program = installed_chromium()
    size = f"--window-size={SCREEN[0]},{SCREEN[1]}"
    dark = ["--force-dark-mode", "--blink-settings=preferredColorScheme=0"] if scheme == "dark" else []
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / scheme}", size, *dark]
    done = subprocess.run(
        [program, *options, *arguments], capture_output=True, text=True, timeout=RENDER_S, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def installed_chromium() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["update"], ["install", "--yes", "--no-install-recommends", "chromium"]):
            subprocess.run(["apt-get", "--quiet=2", *command], env=env, check=True, timeout=INSTALL_S)
        found = shutil.which("chromium")
    assert found is not None
    return found


def colours(picture: Path) -> dict[tuple[int, ...], int]:
    """How many pixels have each colour."""
    from matplotlib.image import imread

    pixels = (imread(picture)[..., :3] * 255).astype(int).reshape(-1, 3)
    found: dict[tuple[int, ...], int] = {}
    for red, green, blue in pixels.tolist():
        found[red, green, blue] = found.get((red, green, blue), 0) + 1
    return found
