"""Ending what a rank waits in from outside: gloo has no abort (torch 2.5 to 2.13; ``abort()`` does nothing there).

Only a closed connection makes a rank that waits in a collective, or at a store, leave it before the timeout.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

WATCHED = re.compile(r"^tfd:\s+(\d+)", re.MULTILINE)


def shut_down_connections() -> int:
    """Shut down all connections of gloo groups in this process, and return how many there were.

    Called beside a thread that waits in one: it gets the RuntimeError that the loss of a peer gives.
    """
    found = 0
    for watched in _watched_together():
        if _is_gloo(watched):
            found += sum(_shut_down(handle) for handle in watched)
    return found


def shut_down_store(port: int) -> int:
    """Shut down this process's connections to and from a store at ``port``; returns how many there were."""
    handles = (int(path.name) for path in Path("/proc/self/fd").iterdir())
    return sum(_shut_down(handle) for handle in handles if port in _ports(handle))


def _ports(handle: int) -> set[int]:
    """Of both ends of a TCP connection."""
    try:
        with _copied(handle) as copy:
            is_tcp = copy.family in (socket.AF_INET, socket.AF_INET6) and copy.type == socket.SOCK_STREAM
            return {copy.getsockname()[1], copy.getpeername()[1]} if is_tcp else set()
    except OSError:
        return set()


def _watched_together() -> Iterator[list[int]]:
    """The descriptors of each epoll instance of this process."""
    for handle in (path.name for path in Path("/proc/self/fd").iterdir()):
        if _target(handle) == "anon_inode:[eventpoll]":
            with contextlib.suppress(OSError):
                text = Path(f"/proc/self/fdinfo/{handle}").read_text()
                yield [int(number) for number in WATCHED.findall(text)]


def _is_gloo(watched: list[int]) -> bool:
    """A device of gloo watches a pipe and a socket that listens; torch's store (libuv) an eventfd too."""
    targets = [_target(handle) for handle in watched]
    has_pipe = any(target.startswith("pipe:") for target in targets)
    is_libuv = any(target == "anon_inode:[eventfd]" for target in targets)
    return has_pipe and not is_libuv and any(_listens(handle) for handle in watched)


@contextlib.contextmanager
def _copied(handle: int) -> Iterator[socket.socket]:
    """Raises OSError for what is no socket."""
    copy = os.dup(handle)
    try:
        found = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise
    with found:
        yield found


def _target(handle: int | str) -> str:
    try:
        return str(Path(f"/proc/self/fd/{handle}").readlink())
    except OSError:
        return ""


def _listens(handle: int) -> bool:
    try:
        with _copied(handle) as copy:
            return bool(copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    except OSError:
        return False


def _shut_down(handle: int) -> bool:
    try:
        with _copied(handle) as copy:
            copy.getpeername()  # raises for what is no connection
            copy.shutdown(socket.SHUT_RDWR)
            return True
    except OSError:
        return False
