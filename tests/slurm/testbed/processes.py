"""Finds and ends processes by what stands in their environment, so that no process id is ever kept."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from tests.harness import wait_for


def spawn(command: list[str], *, env: Mapping[str, str], log: Path) -> None:
    """Start a process that outlives this one and is no child of it, so that nobody here has to reap it."""
    with log.open("ab") as output:
        subprocess.run(
            ["setsid", "--fork", *command],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            check=True,
        )


def matching(wanted: Mapping[str, str | None]) -> list[psutil.Process]:
    """Living processes that were started with all these variables; None: with any value."""
    return [process for process in psutil.process_iter() if _matches(process, wanted)]


def environment(pid: int) -> dict[str, str]:
    """What the process was started with; empty when it has ended.

    psutil stops at the first empty string, and slurmstepd has overwritten the first variables with its title.
    """
    try:
        block = Path("/proc", str(pid), "environ").read_bytes()
    except OSError:
        return {}
    entries = (entry.partition("=") for entry in block.decode(errors="replace").split("\0"))
    return {name: value for name, _, value in entries if name}


def descendants(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    found = []
    for process in processes:
        with suppress(psutil.Error):
            found += process.children(recursive=True)
    return found


def unique(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """The living ones, each once, in their order."""
    return [process for process in dict.fromkeys(processes) if _living(process)]


def kill(find: Callable[[], list[psutil.Process]]) -> None:
    """SIGKILL to all that ``find`` finds, in its order, until it finds nothing more."""

    def none_left() -> bool:
        found = find()
        for process in found:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        return not found

    wait_for(none_left, what="the end of all processes")


def _matches(process: psutil.Process, wanted: Mapping[str, str | None]) -> bool:
    env = environment(process.pid)
    return all(name in env and value in (None, env[name]) for name, value in wanted.items())


def _living(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
