"""A tiny process beside each rank: it ends a rank that never reaches its session, and notes when the rank is gone.

NVRx's monitor watches a rank only once its client is connected, so a hang in imports would go unseen. The
watch is forked before anything heavy is loaded, and it lives in the rank's process group but for its signals.
"""

from __future__ import annotations

import dataclasses
import os
import select
import signal

from nemo_resiliency_plugins.contract import rank_record_path
from nemo_resiliency_plugins.runtime.events import EventLog
from nemo_resiliency_plugins.runtime.identity import Identity
from nemo_resiliency_plugins.runtime.log import line, logger
from nemo_resiliency_plugins.runtime.record import note_end

_writer: int | None = None
"""The end of the pipe on which this process tells its watch that the session is up."""


@dataclasses.dataclass(frozen=True)
class _Ward:
    """The rank that a watch looks after."""

    pid: int
    pidfd: int
    identity: Identity

    def ended(self, events: EventLog) -> None:
        events.emit("rank_ended", pid=self.pid)
        if self.identity.directory is not None:
            note_end(rank_record_path(self.identity.directory, self.identity.rank), self.pid)

    def kill(self, limit_s: float, events: EventLog) -> None:
        text = f"did not reach its session within {limit_s:g} s: killed (imports or set-up hang)"
        logger().error(line(self.identity.rank, text))
        events.emit("startup_timeout", limit_s=limit_s)
        for number in (signal.SIGCONT, signal.SIGKILL):
            signal.pidfd_send_signal(self.pidfd, number)


def start(identity: Identity, limit_s: float | None) -> None:
    """Fork the watch of this process. ``limit_s``: seconds until :func:`reached_session` must be called."""
    global _writer
    if not hasattr(os, "pidfd_open"):
        return
    pid = os.getpid()
    reader, writer = os.pipe()
    between = os.fork()
    if between == 0:
        # The watch is a grandchild, so that a script that waits for all its children does not wait for it.
        if os.fork() == 0:
            os.close(writer)
            _watch_and_leave(pid, identity, reader, limit_s)
        os._exit(0)
    os.waitpid(between, 0)
    os.close(reader)
    _writer = writer


def reached_session() -> None:
    """Tell the watch of this process, if it has one, that the session is up."""
    global _writer
    if _writer is None:
        return
    try:
        os.write(_writer, b"1")
    except OSError:
        logger().warning("the watch of this rank's start is gone: imports were not watched")
    os.close(_writer)
    _writer = None


def _watch_and_leave(pid: int, identity: Identity, reader: int, limit_s: float | None) -> None:
    try:
        ward = _Ward(pid, os.pidfd_open(pid), identity)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        events = EventLog(ward.identity.directory, ward.identity.attempt, ward.identity.rank)
        if not _ready([ward.pidfd, reader], limit_s):
            ward.kill(limit_s or 0.0, events)
        _ready([ward.pidfd], None)
        ward.ended(events)
    finally:
        os._exit(0)


def _ready(handles: list[int], timeout_s: float | None) -> bool:
    return bool(select.select(handles, [], [], timeout_s)[0])
