"""``python -m nemo_resiliency_plugins.runtime.launch [--] [-m] SCRIPT ARGUMENTS``: run a script as a rank.

The script runs as it would under ``python``. Beside it, a watch bounds the time until its session starts,
what ended the script is recorded by name, and a failed rank leaves in bounded time. With ``zero_code`` a script
without a session is watched as well. With ``--exec COMMAND ARGUMENTS`` the process becomes any other program.
"""

from __future__ import annotations

import atexit
import builtins
import importlib.machinery
import json
import os
import runpy
import sys
import threading
import types
from pathlib import Path
from typing import Any, NoReturn

from nemo_resiliency_plugins import evidence
from nemo_resiliency_plugins.config import FaultToleranceConfig
from nemo_resiliency_plugins.contract import (
    ENV_DIR,
    ExitCode,
    decode_arguments,
    failure_path,
    unstartable_path,
    write_if_first,
)
from nemo_resiliency_plugins.runtime import quick_end, watch, zero_code
from nemo_resiliency_plugins.runtime.effective import resolve
from nemo_resiliency_plugins.runtime.events import EventLog, emit_failure, message_of
from nemo_resiliency_plugins.runtime.identity import Identity
from nemo_resiliency_plugins.runtime.leaving_word import told_if_not_left
from nemo_resiliency_plugins.runtime.log import line, logger
from nemo_resiliency_plugins.runtime.preemption import early
from nemo_resiliency_plugins.runtime.prestart import imports, waiting

EXIT_GRACE_S = 60.0
"""A failed rank is out of its monitor's sight, so threads that do not end may not hold it longer than this."""


def main(arguments: list[str]) -> None:
    atexit.register(quick_end.spare_the_search)  # before others register theirs, which run first
    prestarted = waiting.until_needed()
    imports.survey()
    arguments = decode_arguments(arguments)
    identity = Identity.from_env()
    if early.is_doomed(identity):
        logger().info(line(identity.rank, "the end of this attempt has been announced: nothing is started"))
        return
    config = resolve(FaultToleranceConfig, None, os.environ)
    if arguments[:1] == ["--exec"] and len(arguments) > 1:
        _become(arguments[1:], config, identity)
    as_module = arguments[:1] == ["-m"]
    arguments = arguments[1:] if as_module else arguments
    if not arguments:
        raise SystemExit(__doc__)
    if identity.directory is not None:
        os.environ[ENV_DIR] = str(identity.directory)  # absolute, whatever directory the script goes to
    script = Path(arguments[0]).absolute() if not as_module else find_module(arguments[0])
    events = EventLog(identity.directory, identity.attempt, identity.rank)
    place = {"pid": os.getpid(), "node": identity.node}
    events.emit("rank_started", **place, script=arguments[0], prestarted=prestarted, **_processes(identity))
    _guard_start(script, config, identity, events)
    own = os.getpid()
    try:
        _run(arguments, script, as_module)
        _ended(None, own, identity, events)
    except BaseException as error:
        _ended(error, own, identity, events)
        raise


def _processes(identity: Identity) -> dict[str, Any]:
    """By what a reader on this machine can tell that the job is over. In a Slurm job the batch script may go on."""
    if not identity.launched or "SLURM_JOB_ID" in os.environ:
        return {}
    own = [(pid, evidence.started(pid)) for pid in (os.getppid(), os.getpid())]
    return {"machine": evidence.machine(), "processes": own}


def _ended(error: BaseException | None, own: int, identity: Identity, events: EventLog) -> None:
    """A forked child of the script comes by here as well when it leaves."""
    if os.getpid() != own:
        return
    if error is None or exit_code(error) == 0:
        atexit.unregister(quick_end.spare_the_search)
        events.emit("rank_left")
    else:
        zero_code.failed()
        _record(error, identity, events)


class MissingScript(FileNotFoundError):
    """The script or module that a rank should run is not there."""


def exit_code(error: BaseException) -> int:
    """What the process will end with because of ``error``."""
    if not isinstance(error, SystemExit):
        return int(ExitCode.FAILED)
    if isinstance(error.code, int):
        return error.code & 0xFF
    return int(ExitCode.OK if error.code is None else ExitCode.FAILED)


def _become(command: list[str], config: FaultToleranceConfig, identity: Identity) -> NoReturn:
    if config.zero_code:
        zero_code.report_other_program(command[0], identity)
    early.leave_no_trace()
    os.environ.pop(imports.ENV_ROOM, None)
    os.execvp(command[0], command)


def _run(arguments: list[str], script: Path | None, as_module: bool) -> None:
    if script is None or not script.exists():
        raise MissingScript(2, "No such file or module", arguments[0])
    sys.argv = list(arguments)
    if as_module:
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    elif script.is_dir() or script.suffix in (".zip", ".pyz"):
        runpy.run_path(str(script), run_name="__main__")
    else:
        _run_as_main(script)


def _run_as_main(script: Path) -> None:
    """As ``python script`` does: ``__main__`` is the script for as long as the process lives.

    ``runpy`` would put the old ``__main__`` back, and threads and exit hooks of the script could no longer pickle.
    """
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = str(script.resolve().parent)
    module = types.ModuleType("__main__")
    module.__file__ = str(script)
    module.__loader__ = importlib.machinery.SourceFileLoader("__main__", str(script))
    module.__dict__.update(__builtins__=builtins, __cached__=None)
    code = compile(script.read_bytes(), str(script), "exec", dont_inherit=True)
    sys.modules["__main__"] = module
    exec(code, module.__dict__)


def _guard_start(script: Path | None, config: FaultToleranceConfig, identity: Identity, events: EventLog) -> None:
    """Bound the time until the session, and take care of signals until then."""
    opens_session = _opens_session(script)
    is_bounded = opens_session or (config.zero_code and zero_code.knows_to_train(identity))
    watch.start(identity, config.startup_timeout_s if is_bounded else None)
    if opens_session:
        early.install(identity, events)
    if config.zero_code:
        zero_code.begin(config, identity, events, listens=not opens_session)
    early.unblock()


def _opens_session(script: Path | None) -> bool:
    """Whether the script shows a sign of it: only then its way there can be watched, and nothing is lost on it."""
    source = script / "__main__.py" if script is not None and script.is_dir() else script
    try:
        return source is not None and b"nemo_resiliency_plugins" in source.read_bytes()
    except OSError:
        return False


def find_module(name: str) -> Path | None:
    """The file that ``-m name`` runs, found without importing its packages: they may load torch."""
    spec, locations, found = None, None, ""
    for part in name.split("."):
        found = f"{found}.{part}" if found else part
        spec = next(filter(None, (finder.find_spec(found, locations) for finder in sys.meta_path)), None)
        locations = spec.submodule_search_locations if spec else []
    if spec is not None and spec.submodule_search_locations is not None:
        return find_module(f"{name}.__main__")
    return Path(spec.origin) if spec and spec.origin else None


def _record(error: BaseException, identity: Identity, events: EventLog) -> None:
    """Keep what ended this rank, and make sure that it does end."""
    _leave_in_bounded_time()
    emit_failure(events, "rank_failed", error, code=exit_code(error))
    if identity.directory is None:
        return
    what = f"{type(error).__name__}: {message_of(error)}"[:500]
    failure = {"code": exit_code(error), "rank": identity.rank, "node": identity.node, "error": what}
    meeting = os.environ.get("MASTER_PORT", "0")
    with told_if_not_left("what ended this rank"):
        write_if_first(failure_path(identity.directory, identity.attempt, meeting), json.dumps(failure) + "\n")
        if isinstance(error, (ModuleNotFoundError, MissingScript)):
            # What is not there will not be there at the next attempt either.
            write_if_first(unstartable_path(identity.directory, identity.attempt), f"{what}\n")


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
