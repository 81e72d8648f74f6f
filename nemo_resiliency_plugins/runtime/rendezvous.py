"""Where the nodes of one attempt meet: the head node binds a port and publishes it, the others wait for that."""

from __future__ import annotations

import contextlib
import fcntl
import random
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

from nemo_resiliency_plugins.contract import write_atomically
from nemo_resiliency_plugins.errors import ConfigError

POLL_S = 0.1
PORTS = (15000, 32768)
DRAW = random.SystemRandom()
"""A training that resumes restores the state of the shared generator, and would draw the same port each time."""
SIOCGIFADDR = 0x8915
INTERFACE_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
ALLOW_LOOPBACK = "NRP_ALLOW_LOOPBACK"


def node_count(env: Mapping[str, str]) -> int:
    """Of this Slurm step; 1 outside one."""
    return int(env.get("SLURM_STEP_NUM_NODES", env.get("SLURM_NNODES", "1")))


def publish(path: Path, host: str) -> str:
    """Choose a free port of this machine and write ``host:port`` to ``path``."""
    endpoint = f"{host}:{free_port()}"
    write_atomically(path, endpoint + "\n")
    return endpoint


def free_port() -> int:
    """A port that nobody listens on, out of the range that the kernel gives to outgoing connections.

    The launcher binds it only seconds later, when torch is imported; until then nothing else is likely to take it.
    """
    while True:
        port = DRAW.randrange(*PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return port


def await_endpoint(path: Path, deadline_s: float) -> str:
    """The endpoint that the head node has published.

    Raises:
        ConfigError: none within ``deadline_s`` seconds.
    """
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        with contextlib.suppress(FileNotFoundError):
            return path.read_text().strip()
        time.sleep(POLL_S)
    rule = f"the head node has not published its endpoint there within {deadline_s:g} s"
    remedy = "See the head node's log; the job directory must be on a file system that all nodes share."
    raise ConfigError("rendezvous", str(path), rule, remedy)


def own_address(env: Mapping[str, str], *, nodes: int) -> str:
    """The IPv4 address under which other nodes reach this one.

    Raises:
        ConfigError: several nodes, and only the loopback address is known.
    """
    candidates = [*_of_interfaces(env), *_of_host_name(), *_of_default_route()]
    avoided = _avoided(env)
    usable = [address for address in candidates if not address.startswith("127.") and address not in avoided]
    if usable:
        return usable[0]
    if nodes == 1 or env.get(ALLOW_LOOPBACK) == "1":
        return "127.0.0.1"
    rule = "resolves to no address that other nodes could reach"
    raise ConfigError("head node", socket.gethostname(), rule, f"Set {' or '.join(INTERFACE_VARIABLES)}.")


def _of_interfaces(env: Mapping[str, str]) -> list[str]:
    """Addresses of the interfaces that the user has named."""
    found = [name for variable in INTERFACE_VARIABLES for name in _named(env.get(variable, ""))]
    return [address for address in map(_address_of, found) if address]


def _avoided(env: Mapping[str, str]) -> set[str]:
    """Addresses of the interfaces that the user has excluded, as NCCL reads ``^docker,lo``."""
    values = (env.get(variable, "") for variable in INTERFACE_VARIABLES)
    excluded = [name for value in values if value.startswith("^") for name in _named(value[1:])]
    return {address for address in map(_address_of, excluded) if address}


def _named(value: str) -> list[str]:
    """Interfaces of this machine: by prefix as NCCL reads a name, by the whole name after ``=``; none after ``^``."""
    exact, wanted = value.startswith("="), [name for name in value.lstrip("=").split(",") if name]
    present = [name for _, name in socket.if_nameindex()]
    if value.startswith("^"):
        return []
    return [name for name in present if any(name == want if exact else name.startswith(want) for want in wanted)]


def _address_of(interface: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def _of_host_name() -> list[str]:
    try:
        return socket.gethostbyname_ex(socket.gethostname())[2]
    except OSError:
        return []


def _of_default_route() -> list[str]:
    """The source address that the kernel would use; no packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return []
        return [probe.getsockname()[0]]
