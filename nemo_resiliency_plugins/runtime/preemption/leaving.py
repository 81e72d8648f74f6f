"""The ways in which a rank leaves at once, from a signal handler or from another thread than the main one."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import sys
from typing import NoReturn

from nemo_resiliency_plugins.contract import ExitCode, Reason, Verdict, verdict_path, write_if_first
from nemo_resiliency_plugins.runtime.events import EventLog
from nemo_resiliency_plugins.runtime.identity import Identity
from nemo_resiliency_plugins.runtime.leaving_word import told_if_not_left

STOPPED = 128 + signal.SIGTERM


def leave_set_up(identity: Identity) -> NoReturn:
    """Before the first step nothing can be lost: note why, unless another rank has, and go."""
    if identity.directory is not None:
        verdict = Verdict(Reason.PREEMPTED, ExitCode.OK, 0, identity.rank, identity.node)
        path = verdict_path(identity.directory, identity.attempt)
        with told_if_not_left("the verdict of a rank in its set-up"):
            write_if_first(path, json.dumps(dataclasses.asdict(verdict)) + "\n")
    _leave(ExitCode.OK)


def leave_for_restart(events: EventLog) -> NoReturn:
    """The launcher stops its workers to start them again, and waits for this one."""
    events.emit("stopped_by_launcher")
    _leave(STOPPED)


def leave_unsaved(number: int) -> NoReturn:
    """As the signal would have ended a process that does not handle it."""
    _leave(128 + number)


def _leave(code: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        # A handler may have interrupted the main thread in the middle of a write, or the script closed the stream.
        with contextlib.suppress(RuntimeError, OSError, ValueError):
            stream.flush()
    os._exit(code)
