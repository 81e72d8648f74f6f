"""An sshd on the loopback interface: the way from a laptop to a login node of the cluster."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from string import Template
from unittest import mock

import psutil

from tests.harness import BIN, wait_for
from tests.slurm.testbed import packages, processes
from tests.slurm.testbed.cluster import Cluster
from tests.slurm.testbed.layout import free_ports

PACKAGE_OF = {"sshd": "openssh-server", "ssh": "openssh-client", "rsync": "rsync"}
HOST = "127.0.0.1"
# sshd does not start without it; where systemd runs, that makes it.
PRIVILEGE_SEPARATION = Path("/run/sshd")
# StrictModes: everything lies below /tmp, which all can write to.
CONFIG = Template(
    """\
ListenAddress $host:$port
HostKey $root/host_key
AuthorizedKeysFile $root/identity.pub
PidFile none
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
SetEnv $variables
Subsystem sftp internal-sftp
"""
)


@dataclasses.dataclass(frozen=True)
class LoginNode:
    """What a laptop has to know to log in as root; all of it lies below ``root``."""

    root: Path
    port: int

    @property
    def identity(self) -> Path:
        return self.root / "identity"

    @property
    def laptop_bin(self) -> Path:
        """Holds an ssh that knows the host, whatever is in ~/.ssh; first on the laptop's PATH."""
        return self.root / "laptop-bin"

    @property
    def log(self) -> Path:
        return self.root / "sshd.log"


@contextmanager
def login_node(root: Path, cluster: Cluster) -> Iterator[LoginNode]:
    """A login node whose shells find the cluster's commands and our virtual environment."""
    with mock.patch.dict(packages.PACKAGE_OF, PACKAGE_OF):
        packages.require()
    PRIVILEGE_SEPARATION.mkdir(mode=0o755, exist_ok=True)
    node = LoginNode(root, free_ports(1)[0])
    _write(node, cluster.layout.variables(f"{BIN}:{packages.SYSTEM_PATH}"))
    command = ["/usr/sbin/sshd", "-D", "-f", str(root / "sshd_config"), "-E", str(node.log)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, cwd="/")
    try:
        wait_for(lambda: process.poll() is not None or _listens(node), what="sshd")
        if process.returncode is not None:
            raise packages.TestbedError(f"sshd ended with {process.returncode}: {node.log.read_text()}")
        yield node
    finally:
        _end(process)


def _write(node: LoginNode, variables: dict[str, str]) -> None:
    node.laptop_bin.mkdir(parents=True)
    for name in ("host_key", node.identity.name):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(node.root / name)], check=True)
    public = (node.root / "host_key.pub").read_text()
    known = node.root / "known_hosts"
    known.write_text(f"[{HOST}]:{node.port} {public}")
    ssh = node.laptop_bin / "ssh"
    ssh.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F none -o UserKnownHostsFile={known} -o BatchMode=yes "$@"\n')
    ssh.chmod(0o755)
    given = " ".join(f'"{name}={value}"' for name, value in variables.items())
    text = CONFIG.substitute(host=HOST, port=node.port, root=node.root, variables=given)
    (node.root / "sshd_config").write_text(text)


def _listens(node: LoginNode) -> bool:
    return node.log.exists() and f"port {node.port}" in node.log.read_text()


def _end(process: subprocess.Popen[bytes]) -> None:
    """End sshd and its sessions, which would go on without it."""
    if process.poll() is None:
        found = [psutil.Process(process.pid), *processes.descendants([psutil.Process(process.pid)])]
        processes.kill(lambda: processes.unique(found))
    process.wait()
