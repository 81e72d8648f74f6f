"""What happened in the job, as JSON lines. Observation may not hurt the job: this is the one broad ``except``."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import sysconfig
import time
import traceback
from pathlib import Path
from typing import Any

from nemo_resiliency_plugins.contract import Attempt, events_path
from nemo_resiliency_plugins.runtime.log import logger

TRACEBACK_LINES = 40
PACKAGE = str(Path(__file__).parents[1]) + os.sep


class EventLog:
    """Appends events of one rank to its file; without a directory it does nothing.

    Each event has ``event``, ``time`` (seconds since the epoch), ``rank``, ``attempt`` and ``cycle``.
    """

    def __init__(self, directory: Path | None, attempt: Attempt, rank: int) -> None:
        self._handle: int | None = None
        self._common = {"rank": rank, "attempt": attempt.name, "cycle": attempt.cycle}
        if directory is not None:
            self._open(events_path(directory, attempt, rank))

    def _open(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            logger().warning("events of this rank are not kept: %s", error)

    def emit(self, event: str, **fields: Any) -> None:
        if self._handle is None:
            return
        try:
            content = {"event": event, "time": time.time(), **self._common, **fields}
            os.write(self._handle, json.dumps(content, default=str).encode() + b"\n")
        except Exception as error:  # noqa: BLE001  (a full disk or an odd value must not end the training)
            logger().warning("events of this rank are no longer kept: %s", error)
            self.close()

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def emit_failure(log: EventLog, event: str, error: BaseException, **fields: Any) -> None:
    """Record the error that ended something, with the end of its traceback."""
    text = "".join(traceback.format_tb(error.__traceback__)).splitlines()
    told = {"exception": type(error).__name__, "message": message_of(error), "traceback": text[-TRACEBACK_LINES:]}
    log.emit(event, **told, where=where(error), **fields)


def where(error: BaseException) -> str | None:
    """``train.py:14`` of the innermost frame of the user's own; None for an error that was never raised."""
    frames = list(traceback.walk_tb(error.__traceback__))
    own = [each for each in frames if _is_own(each[0].f_code.co_filename)]
    scripts = [each for each in frames if each[0].f_globals.get("__name__") == "__main__"]
    for frame, number in (own or scripts or frames)[-1:]:
        return f"{_short(frame.f_code.co_filename)}:{number}"
    return None


def _short(file: str) -> str:
    with contextlib.suppress(OSError, ValueError):
        return str(Path(file).relative_to(Path.cwd()))
    return file


def _is_own(file: str) -> bool:
    """Whether neither Python, an installed package, nor this one has brought ``file``."""
    homes = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    homes += [sys.prefix] if sys.prefix != sys.base_prefix else []
    installed = any(part in file for part in ("site-packages", "dist-packages"))
    return not (installed or file.startswith(("<", PACKAGE, *(home + os.sep for home in homes))))


def message_of(error: BaseException) -> str:
    """The message, also of an error that cannot tell it."""
    try:
        return str(error)[:2000]
    except Exception as another:  # noqa: BLE001  (the user's error must not be replaced by this one)
        return f"its message raises {type(another).__name__}"
