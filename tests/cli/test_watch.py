"""``status --watch`` in a real pseudo-terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nemo_resiliency_plugins.contract import Attempt
from tests.harness import BIN, clean_env, wait_for
from tests.synthetic import EPOCH, Job

ROWS, COLUMNS = 24, 80
FIRST = Attempt("7")
CTRL_C = b"\x03"


class Terminal:
    """A program in a terminal, and all that it has written there."""

    def __init__(self, command: list[str]) -> None:
        self._handle, inner = pty.openpty()
        fcntl.ioctl(self._handle, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        # The first terminal that the leader of a session opens is the one whose Ctrl-C it gets.
        opened = ["sh", "-c", 'tty=$1; shift; exec "$@" <$tty >$tty 2>&1', "sh", os.ttyname(inner), *command]
        env = clean_env({"TERM": "xterm-256color"})
        self._process = subprocess.Popen(opened, env=env, start_new_session=True)
        wait_for(lambda: os.tcgetpgrp(self._handle) == self._process.pid, what="the program to own its terminal")
        os.close(inner)
        self.written = ""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # the program has ended
            while block := os.read(self._handle, 65536):
                self.written += block.decode(errors="replace")

    @property
    def frames(self) -> list[str]:
        """What was drawn, each time over the last one."""
        return re.split(r"(?:\r?\x1b\[2K(?:\x1b\[1A)?)+", self.written)

    def press(self, keys: bytes) -> None:
        os.write(self._handle, keys)

    def wait(self) -> int:
        """Its exit code."""
        self._reader.join(60)
        os.close(self._handle)
        return self._process.wait(60)


@contextlib.contextmanager
def watching(job: Job) -> Iterator[Terminal]:
    terminal = Terminal([str(BIN / "nemo-resiliency"), "status", str(job.directory), "--watch", "--every", "0.2"])
    try:
        wait_for(lambda: "running: step 5" in terminal.written, what="the first look")
        yield terminal
    finally:
        with contextlib.suppress(OSError):
            terminal.press(CTRL_C)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    made = Job(tmp_path / "nrp")
    made.start(time.time() - EPOCH - 20, FIRST, saves=(5,))
    return made


def test_each_look_is_drawn_over_the_last_one_until_the_job_is_over(job: Job) -> None:
    now = time.time() - EPOCH
    with watching(job) as terminal:
        with job.rank(1, FIRST) as rank:
            rank.raised(now, "ValueError", "no")
        wait_for(lambda: "between two starts" in terminal.written, what="the failure")
        job.start(now + 1, Attempt("7", cycle=1), resumed=5, saves=(10,), left="finished")
        assert terminal.wait() == 0
    assert all(frame.count("ranks: 2 on 2 nodes") <= 1 for frame in terminal.frames)
    assert "finished: step 10, checkpoint 10, 1 failure" in terminal.frames[-1]
    assert "failure: rank 1 on n1: ValueError: no" in terminal.frames[-1]


def test_ctrl_c_ends_it_without_a_traceback(job: Job) -> None:
    with watching(job) as terminal:
        terminal.press(CTRL_C)
        assert terminal.wait() == 130
    assert "Traceback" not in terminal.written
    assert "\x1b[?25h" in terminal.written[-20:]  # the cursor is shown again


def test_the_newest_failures_are_on_a_screen_that_cannot_hold_all(job: Job) -> None:
    now = time.time() - EPOCH
    with watching(job) as terminal:
        for number in range(8):
            attempt = Attempt("7", cycle=number)
            if number:
                job.start(now + number, attempt, resumed=5)
            with job.rank(1, attempt) as rank:
                rank.raised(now + number + 0.5, "ValueError", f"number {number}, {'which is long ' * 8}")
        wait_for(lambda: "6 earlier failures not shown: see report" in terminal.written, what="8 failures")
        terminal.press(CTRL_C)
        terminal.wait()
    last = terminal.frames[-1]
    assert last.count("\n") < ROWS
    assert "ValueError: number 7" in last
