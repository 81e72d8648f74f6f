"""A job of many ranks and attempts costs time, not memory."""

from __future__ import annotations

import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from nemo_resiliency_plugins.contract import Attempt
from nemo_resiliency_plugins.report import reading
from nemo_resiliency_plugins.report.state import MOST_FILES, state_of
from nemo_resiliency_plugins.report.summary import summarize
from nemo_resiliency_plugins.report.timeline import chosen_ranks, lanes
from tests.synthetic import EPOCH, Job

LENGTH_S = 100.0
MEASURED = """
import re, sys, time
from pathlib import Path
from nemo_resiliency_plugins.cli.main import app
try:
    app()
finally:
    peak_kb = re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]
    print(int(peak_kb) / 1e3, time.process_time(), file=sys.stderr)
"""


def write(directory: Path, *, ranks: int, attempts: int) -> Job:
    """In each attempt but the last one, one rank fails and all others lose their connection to it."""
    job = Job(directory / "nrp", ranks=ranks, ranks_per_node=8)
    for number in range(attempts):
        attempt, at, step = Attempt("7", restart_count=number), number * LENGTH_S, number * 10
        last = number == attempts - 1
        job.start(at, attempt, resumed=step, saves=(step + 5, step + 10), left="finished" if last else None)
        for each in range(0 if last else ranks):
            with job.rank(each, attempt) as rank:
                if each == (7 * number) % ranks:
                    rank.raised(at + 20, "ValueError", f"of attempt {number}")
                else:
                    rank.lost_a_peer(at + 20.2)
    return job


def peak(action: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def read_all(job: Job) -> None:
    report = summarize(job.directory, EPOCH + 1e6)
    assert len(report.failures) == report.attempts - 1
    assert all(f"of attempt {number}" in str(failure) for number, failure in enumerate(report.failures))
    assert lanes(job.directory, report, chosen_ranks(report, 16))


def test_ten_times_the_ranks_need_no_more_memory(tmp_path: Path) -> None:
    few, many = (write(tmp_path / str(ranks), ranks=ranks, attempts=4) for ranks in (10, 100))
    read_all(few)  # what is loaded once is loaded
    small, large = peak(lambda: read_all(few)), peak(lambda: read_all(many))
    # The names of the files are all that grows with their number: about 500 bytes each.
    assert large - small < 90 * 4 * 1000


def test_the_events_of_a_file_are_read_one_by_one(tmp_path: Path) -> None:
    job = Job(tmp_path / "nrp", ranks=1)
    with job.rank(0, Attempt("7")) as rank:
        for number in range(3_000):
            rank.tell(number, "progress", step=number)
    [file] = reading.event_files(job.directory)
    assert peak(lambda: sum(1 for _ in reading.events_of(file))) < 100_000 < file.path.stat().st_size


def test_status_reads_the_newest_attempts_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nemo_resiliency_plugins.report.state.MOST_FILES", 45)
    state = state_of(write(tmp_path, ranks=20, attempts=5).directory, EPOCH + 1e6)
    assert (state.attempts, state.left_out, state.step, state.state) == (5, 3, 50, "finished")
    assert ["of attempt 3" in str(failure) for failure in state.failures] == [True]


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_thousand_ranks_and_a_hundred_attempts(tmp_path: Path) -> None:
    job = write(tmp_path, ranks=1000, attempts=100)
    began = time.monotonic()
    state = state_of(job.directory, EPOCH + 1e6)
    told_s = time.monotonic() - began
    command = [sys.executable, "-c", MEASURED, "report", str(job.directory), "--html", str(tmp_path / "report.html")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    used, cpu_s = (float(word) for word in done.stderr.split()[-2:])
    print(f"status {told_s:.1f} s, report {cpu_s:.1f} s of CPU and {used:.0f} MB")
    assert "100 attempts, 100 starts, 99 failures" in done.stdout
    assert state.attempts - state.left_out <= MOST_FILES / 1000
    assert used < 200, "MB"
