"""Where the nodes of one attempt meet: the head node binds a port and publishes it, the others wait for that."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

from nemo_resiliency_plugins.contract import write_atomically
from nemo_resiliency_plugins.errors import ConfigError

POLL_S = 0.1
SIOCGIFADDR = 0x8915
INTERFACE_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
ALLOW_LOOPBACK = "NRP_ALLOW_LOOPBACK"


def publish(path: Path, host: str) -> str:
    """Choose a free port of this machine and write ``host:port`` to ``path``."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        endpoint = f"{host}:{probe.getsockname()[1]}"
    write_atomically(path, endpoint + "\n")
    return endpoint


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
    usable = [address for address in candidates if not address.startswith("127.")]
    if usable:
        return usable[0]
    if nodes == 1 or env.get(ALLOW_LOOPBACK) == "1":
        return "127.0.0.1"
    rule = "resolves to no address that other nodes could reach"
    raise ConfigError("head node", socket.gethostname(), rule, f"Set {' or '.join(INTERFACE_VARIABLES)}.")


def _of_interfaces(env: Mapping[str, str]) -> list[str]:
    """Addresses of the interfaces that the user has named, or of those whose names begin so."""
    wanted = [name for variable in INTERFACE_VARIABLES for name in env.get(variable, "").lstrip("=").split(",") if name]
    found = [name for _, name in socket.if_nameindex() if any(name.startswith(prefix) for prefix in wanted)]
    return [address for address in map(_address_of, found) if address]


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
