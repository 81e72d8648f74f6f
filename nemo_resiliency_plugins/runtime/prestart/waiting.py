"""A process that waits to be a rank: loads ahead, then takes variables and outputs from the launcher."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

from nemo_resiliency_plugins.runtime.log import logger
from nemo_resiliency_plugins.runtime.prestart import imports

ENV_CHANNEL = "NRP_PRESTART_CHANNEL"
"""The number of the socket to the launcher."""
LOADS, NAME = "nrp-prestarting", "nrp-prestarted"
"""What ``ps`` shows while the process loads, and while it waits; the kernel keeps 15 characters."""
ENV_WARM_POOL = "TORCH_WARM_POOL"
"""Older versions of torch start processes as their compiler is imported; with 0 the first compilation does."""
LOOK_S = 1.0
CHUNK, OUTPUTS = 1 << 16, 2
WORD = b"!"
"""Sent by the process when it can be taken, and once more when it is."""
ARGUMENTS_BEGIN = 45
"""The place of ``arg_start`` in /proc/PID/stat, counted from what follows the name."""


def until_needed() -> bool:
    """False, at once, in a rank that was started as usual; True when this process has become the rank."""
    number = os.environ.pop(ENV_CHANNEL, None)
    if number is None:
        return False
    launcher = os.getppid()
    with socket.socket(fileno=int(number)) as channel, named(LOADS):
        _load(launcher)
        if _holds_a_gpu():
            logger().info("[FaultTolerance] its imports use the GPU, so that this rank is not started ahead")
            os._exit(0)
        _say(channel)
        with named(NAME):
            variables = _await_start(channel, launcher)
    os.environ.clear()
    os.environ.update(variables)
    return True


def _load(launcher: int) -> None:
    os.environ[ENV_WARM_POOL] = "0"
    try:
        imports.load(os.environ, is_wanted=lambda: os.getppid() == launcher)
    except FileNotFoundError:
        os._exit(0)  # the restart has come first


def _holds_a_gpu() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized()


def _await_start(channel: socket.socket, launcher: int) -> dict[str, str]:
    """The variables of the rank; its outputs take the place of ours. The process ends with its launcher."""
    channel.settimeout(LOOK_S)
    while True:
        with contextlib.suppress(TimeoutError):
            content, outputs, *_ = socket.recv_fds(channel, CHUNK, OUTPUTS)
            break
        if os.getppid() != launcher:
            os._exit(0)
    channel.settimeout(None)
    while more := channel.recv(CHUNK):
        content += more
    if not content:
        os._exit(0)
    for received, own in zip(outputs, (1, 2), strict=True):
        os.dup2(received, own)
        os.close(received)
    _forget_signals()
    _say(channel)
    variables: dict[str, str] = json.loads(content)
    return variables


def _say(channel: socket.socket) -> None:
    try:
        channel.sendall(WORD)
    except OSError:
        os._exit(0)  # nobody is there to hear


def _forget_signals() -> None:
    """What the launcher's shield has held back was not for a rank; what comes from here on is."""
    held_back = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    while signal.sigtimedwait(held_back, 0):
        pass


@contextlib.contextmanager
def named(name: str) -> Iterator[None]:
    """Shows ``name`` instead of the rank's command line, so that nobody who looks for the rank finds this process."""
    comm, command = Path("/proc/self/comm"), Path("/proc/self/cmdline").read_bytes()
    before = comm.read_text().strip()
    comm.write_text(name)
    _show(name.encode().ljust(len(command), b"\0"))
    yield
    _show(command)
    comm.write_text(before)


def _show(command: bytes) -> None:
    """Where the kernel does not allow that, the old command line stays."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    with contextlib.suppress(OSError), Path("/proc/self/mem").open("r+b", buffering=0) as memory:
        memory.seek(int(fields[ARGUMENTS_BEGIN]))
        memory.write(command)
