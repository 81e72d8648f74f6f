"""The launcher's side: which processes wait, and which of them becomes the rank that is to start."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from nemo_resiliency_plugins.compat import elastic
from nemo_resiliency_plugins.runtime.log import logger
from nemo_resiliency_plugins.runtime.prestart.imports import ENV_IMPORTS, ENV_ROOM, told_path
from nemo_resiliency_plugins.runtime.prestart.waiting import ENV_CHANNEL, WORD

OWN_PACKAGE = __name__.partition(".prestart")[0]
"""Of this project; what it brings for other libraries would load those."""
DELAY_S = 5.0
"""Seconds from a rank's first step until its replacement starts: the first steps have the processors to themselves."""
LOOK_S = 0.5
HAND_OVER_S, END_S = 10.0, 1.0
OF_A_START = re.compile(r"MASTER_(ADDR|PORT)|(TORCHELASTIC|FT|NVRX|NRP)_\w+")
"""Variables that may differ between two starts of a rank. RANK is none of them: Lightning reads it as it is loaded."""

Variables = Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class Start:
    """How a rank was started last."""

    command: tuple[str, ...]
    env: dict[str, str]

    @property
    def may_be_repeated(self) -> bool:
        return int(self.env["TORCHELASTIC_RESTART_COUNT"]) < int(self.env["TORCHELASTIC_MAX_RESTARTS"])

    def is_like(self, command: tuple[str, ...], env: Variables) -> bool:
        changed = {name for name, _ in self.env.items() ^ env.items()}
        return self.command == command and all(map(OF_A_START.fullmatch, changed))


class Waiting:
    """A process that waits to be the rank of ``start``."""

    def __init__(self, start: Start) -> None:
        self.start = start
        self._channel, theirs = socket.socketpair()
        number = theirs.fileno()
        env = {**start.env, ENV_CHANNEL: str(number)}
        with theirs, contextlib.ExitStack() as stack:
            stack.callback(self._channel.close)
            self.process = subprocess.Popen(start.command, env=env, pass_fds=[number], start_new_session=True)
            stack.pop_all()

    def become(self, env: Variables, outputs: Sequence[int]) -> subprocess.Popen[bytes]:
        """Raises OSError for a process that is gone, still loads, or does not listen."""
        try:
            self._hear(socket.MSG_DONTWAIT)
        except BlockingIOError as error:
            raise BlockingIOError("it still loads") from error
        content = json.dumps(dict(env)).encode()
        self._channel.settimeout(HAND_OVER_S)
        sent = socket.send_fds(self._channel, [content], [*outputs])
        self._channel.sendall(content[sent:])
        self._channel.shutdown(socket.SHUT_WR)
        self._hear()
        self._channel.close()
        return self.process

    def _hear(self, flags: int = 0) -> None:
        if self._channel.recv(1, flags) != WORD:
            raise ConnectionResetError("it has ended")

    def end(self) -> None:
        """One that sleeps in the kernel, for a file system that is gone say, holds nobody."""
        self._channel.close()
        self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(END_S)


class Pool:
    """One waiting process a rank, from a while after its first step on.

    Args:
        room: where the ranks tell what they have loaded.
    """

    def __init__(self, room: Path) -> None:
        self._room = room
        self._lock = threading.Lock()
        self._started: dict[str, Start] = {}
        self._waiting: dict[str, Waiting] = {}
        self._closed = threading.Event()

    def rank(self, command: Sequence[str], env: Variables, outputs: Sequence[int]) -> subprocess.Popen[bytes] | None:
        """The process that has become the rank; None where the launcher has to start one."""
        start, place = Start(tuple(command), dict(env)), env["LOCAL_RANK"]
        with self._lock:
            waiting = self._waiting.pop(place, None)
            told_path(self._room, place).unlink(missing_ok=True)
            self._started[place] = start
        if waiting is None:
            return None
        with contextlib.ExitStack() as stack:
            stack.callback(waiting.end)
            try:
                if waiting.start.is_like(start.command, env):
                    process = waiting.become(env, outputs)
                    stack.pop_all()
                    return process
            except OSError as error:
                logger().info("[FaultTolerance] the process that waited for rank %s is of no use: %s", place, error)
        return None

    def keep_full(self) -> None:
        """Runs until the pool is closed."""
        while not self._closed.wait(LOOK_S):
            with self._lock:
                for waiting in self._waiting.values():
                    waiting.process.poll()  # one that has given up is gone, and stays no zombie
                for place in self._due():
                    self._fill(place)

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            for waiting in self._waiting.values():
                waiting.end()

    def _due(self) -> list[str]:
        if self._closed.is_set():
            return []
        missing = self._started.keys() - self._waiting.keys()
        return [place for place in missing if self._started[place].may_be_repeated and self._is_due(place)]

    def _fill(self, place: str) -> None:
        try:
            self._waiting[place] = Waiting(self._started[place])
        except OSError as error:
            del self._started[place]
            logger().info("[FaultTolerance] no process can wait for rank %s: %s", place, error)

    def _is_due(self, place: str) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return time.time() - told_path(self._room, place).stat().st_mtime > DELAY_S
        return False


@contextlib.contextmanager
def prestarted(packages: Sequence[str]) -> Iterator[None]:
    """Ranks that a launcher in this process restarts are taken from a pool.

    Args:
        packages: what the waiting processes may load ahead.
    """
    room = Path(tempfile.mkdtemp(prefix="nrp-prestart-"))
    os.environ.update({ENV_ROOM: str(room), ENV_IMPORTS: ",".join([*packages, OWN_PACKAGE])})
    pool = Pool(room)
    elastic.ask_before_a_rank_starts(pool.rank)
    threading.Thread(target=pool.keep_full, name="nrp-prestart", daemon=True).start()
    try:
        yield
    finally:
        pool.close()
        shutil.rmtree(room, ignore_errors=True)
