"""Where the files of a cluster lie under its root, and what is in its configuration."""

from __future__ import annotations

import dataclasses
import random
import shlex
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from string import Template

from tests.slurm.testbed.packages import SYSTEM_PATH

NODES = ("n1", "n2", "n3")
CPUS = 4
HERE = Path(__file__).resolve().parent
# Below Linux' ephemeral ports (32768 and up), so that no client connection takes one in between.
PORTS = range(17000, 32000)


@dataclasses.dataclass(frozen=True)
class Layout:
    root: Path

    @property
    def slurm_conf(self) -> Path:
        return self.root / "slurm.conf"

    @property
    def bin(self) -> Path:
        """Holds the srun that knows container options; first on PATH."""
        return self.root / "bin"

    @property
    def images(self) -> Path:
        return self.root / "images"

    @property
    def logs(self) -> Path:
        return self.root / "log"

    @property
    def jobs(self) -> Path:
        """Where jobs are submitted from, and so where their output goes unless they say otherwise."""
        return self.root / "jobs"

    @property
    def database(self) -> Path:
        return self.root / "mariadb"

    @property
    def database_socket(self) -> Path:
        return self.database / "socket"

    @property
    def munge(self) -> Path:
        return self.root / "munge"

    def variables(self, path: str) -> dict[str, str]:
        """What a client of the cluster needs in its environment."""
        return {"SLURM_CONF": str(self.slurm_conf), "PATH": f"{self.bin}:{path}"}

    def write(self) -> None:
        """Make the directories and the configuration of a cluster that has not run before."""
        self.root.mkdir(parents=True, exist_ok=True)
        values = self._values()
        # First, because it is what tells a testbed from a directory of somebody else.
        self.slurm_conf.write_text(_rendered("slurm.conf", values))
        slurmdbd_conf = self.root / "slurmdbd.conf"
        # slurmdbd accepts no other mode.
        slurmdbd_conf.touch(0o600)
        slurmdbd_conf.write_text(_rendered("slurmdbd.conf", values))
        for directory in (self.bin, self.images, self.logs, self.jobs, self.munge, self.database):
            directory.mkdir(exist_ok=True)
        # Whoever reaches the socket of MariaDB is its root; the user munge has to reach its own directory.
        self.database.chmod(0o700)
        for directory in (self.root, self.munge):
            directory.chmod(0o755)
        self.write_image("base", {})
        self._write_srun()

    def write_image(self, name: str, env: Mapping[str, str]) -> None:
        directory = self.images / name
        directory.mkdir(parents=True, exist_ok=True)
        variables = {"PATH": f"{Path(sys.prefix, 'bin')}:{SYSTEM_PATH}", **env}
        (directory / "env").write_text("".join(f"{key}={value}\n" for key, value in variables.items()))

    def _values(self) -> dict[str, str]:
        names = ("slurmctld", "slurmdbd", *NODES)
        ports = dict(zip(names, free_ports(len(names)), strict=True))
        node = "NodeName={} NodeHostname=localhost NodeAddr=127.0.0.1 Port={} CPUs={} RealMemory=1000 State=UNKNOWN"
        return {
            "root": str(self.root),
            "host": socket.gethostname().partition(".")[0],
            "nodes": ",".join(NODES),
            "node_lines": "\n".join(node.format(name, ports[name], CPUS) for name in NODES),
            **{f"port_{name}": str(port) for name, port in ports.items()},
        }

    def _write_srun(self) -> None:
        srun = self.bin / "srun"
        command = shlex.join([sys.executable, "-I", str(HERE / "pyxis.py"), str(self.root)])
        srun.write_text(_rendered("srun", {"pyxis": command}))
        srun.chmod(0o755)


def _rendered(name: str, values: Mapping[str, str]) -> str:
    return Template((HERE / f"{name}.template").read_text()).substitute(values)


def free_ports(count: int) -> list[int]:
    found: list[int] = []
    # At random, so that two clusters that start at the same time do not choose the same ones.
    for port in random.sample(PORTS, len(PORTS)):
        if len(found) == count:
            break
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
    return found
