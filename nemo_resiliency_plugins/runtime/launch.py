"""``python -m nemo_resiliency_plugins.runtime.launch [--] [-m] SCRIPT ARGUMENTS``: run a script as a rank.

The script runs as it would under ``python``. Beside it, a watch bounds the time until its session starts,
what ended the script is recorded by name, and a failed rank leaves in bounded time. With ``--exec COMMAND
ARGUMENTS`` the process becomes any other program.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import threading
from pathlib import Path

from nemo_resiliency_plugins.config import FaultToleranceConfig
from nemo_resiliency_plugins.contract import ExitCode, decode_arguments, failure_path, unstartable_path, write_if_first
from nemo_resiliency_plugins.runtime import watch
from nemo_resiliency_plugins.runtime.effective import resolve
from nemo_resiliency_plugins.runtime.events import EventLog, emit_failure
from nemo_resiliency_plugins.runtime.identity import Identity

EXIT_GRACE_S = 60.0
"""A failed rank is out of its monitor's sight, so threads that do not end may not hold it longer than this."""


def main(arguments: list[str]) -> None:
    arguments = decode_arguments(arguments)
    if arguments[:1] == ["--exec"] and len(arguments) > 1:
        os.execvp(arguments[1], arguments[1:])
    as_module = arguments[:1] == ["-m"]
    arguments = arguments[1:] if as_module else arguments
    if not arguments:
        raise SystemExit(__doc__)
    identity = Identity.from_env()
    watch.start(identity, _startup_limit(arguments[0], as_module))
    events = EventLog(identity.directory, identity.attempt, identity.rank)
    events.emit("rank_started", pid=os.getpid(), node=identity.node, script=arguments[0])
    try:
        _run(arguments, as_module)
    except SystemExit as stop:
        if stop.code not in (None, 0):
            _record(stop, arguments[0], identity, events)
        raise
    except BaseException as error:
        _record(error, arguments[0], identity, events)
        raise


def _run(arguments: list[str], as_module: bool) -> None:
    sys.argv = list(arguments)
    if as_module:
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        if not getattr(sys.flags, "safe_path", False):
            sys.path[0] = str(Path(arguments[0]).resolve().parent)
        runpy.run_path(arguments[0], run_name="__main__")


def _startup_limit(script: str, as_module: bool) -> float | None:
    """The limit of the time before the session, or None for a script that shows no sign of opening one."""
    limit_s = resolve(FaultToleranceConfig, None, os.environ).startup_timeout_s
    try:
        source = _module_file(script) if as_module else Path(script)
        return limit_s if source and "nemo_resiliency_plugins" in source.read_text(errors="replace") else None
    except OSError:
        return None


def _module_file(name: str) -> Path | None:
    """The file of a module, found without importing its packages: they may load torch."""
    spec, locations, found = None, None, ""
    for part in name.split("."):
        found = f"{found}.{part}" if found else part
        spec = next(filter(None, (finder.find_spec(found, locations) for finder in sys.meta_path)), None)
        locations = spec.submodule_search_locations if spec else []
    return Path(spec.origin) if spec and spec.origin else None


def _record(error: BaseException, script: str, identity: Identity, events: EventLog) -> None:
    """Keep what ended this rank, and make sure that it does end."""
    _leave_in_bounded_time()
    emit_failure(events, "rank_failed", error)
    if identity.directory is None:
        return
    code = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else ExitCode.FAILED
    failure = {"code": int(code) & 0xFF, "rank": identity.rank, "node": identity.node, "error": repr(error)[:500]}
    write_if_first(failure_path(identity.directory, identity.attempt), json.dumps(failure) + "\n")
    if isinstance(error, ModuleNotFoundError) or (isinstance(error, FileNotFoundError) and error.filename == script):
        # What is not there will not be there at the next attempt either.
        write_if_first(unstartable_path(identity.directory, identity.attempt), f"{error}\n")


def _leave_in_bounded_time() -> None:
    """Threads and exit hooks get a grace; then the process goes, so that the launcher sees the failure."""

    def leave() -> None:
        sys.stderr.flush()
        os._exit(1)

    timer = threading.Timer(EXIT_GRACE_S, leave)
    timer.daemon = True
    timer.start()


if __name__ == "__main__":
    main(sys.argv[1:])
