"""The daemons of a cluster: how each is started, and which processes are theirs."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import psutil

from tests.harness import wait_for
from tests.slurm.testbed import processes
from tests.slurm.testbed.layout import Layout
from tests.slurm.testbed.packages import SYSTEM_PATH

ROOT_VARIABLE = "NRP_TESTBED_ROOT"
DAEMON_VARIABLE = "NRP_TESTBED_DAEMON"
INSTALL_DEADLINE_S = 60
# Nothing in the database has to survive a crash. slurmdbd complains below 128 MB and 900 s.
MARIADB_OPTIONS = (
    "--skip-networking",
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-flush-method=nosync",
    "--innodb-buffer-pool-size=128M",
    "--innodb-lock-wait-timeout=900",
)


class Daemons:
    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def munged(self) -> None:
        directory = self.layout.munge
        key = directory / "key"
        key.touch(0o600)
        key.write_bytes(os.urandom(1024))
        for path in (directory, key):
            shutil.chown(path, "munge", "munge")
        files = [f"--{what}-file={directory / what}" for what in ("key", "seed", "log", "pid")]
        as_munge = ["setpriv", "--reuid=munge", "--regid=munge", "--clear-groups"]
        self._spawn("munged", *as_munge, "munged", "--foreground", f"--socket={directory / 'socket'}", *files)

    def mariadbd(self) -> None:
        where = ["--no-defaults", "--user=root", f"--datadir={self.layout.database}"]
        install = ["mariadb-install-db", *where, "--skip-test-db", "--auth-root-authentication-method=normal"]
        env = self._env("mariadb-install-db")
        subprocess.run(install, env=env, capture_output=True, check=True, timeout=INSTALL_DEADLINE_S)
        socket = self.layout.database_socket
        files = [f"--socket={socket}", f"--pid-file={self.layout.root / 'mariadb.pid'}"]
        self._spawn("mariadbd", "mariadbd", *where, *files, *MARIADB_OPTIONS)
        wait_for(socket.exists, what="the socket of MariaDB")

    def slurmdbd(self) -> None:
        self._spawn("slurmdbd", "slurmdbd", "-D")

    def slurmctld(self) -> None:
        self._spawn("slurmctld", "slurmctld", "-D")

    def slurmd(self, node: str) -> None:
        self._spawn(node, "slurmd", "-D", "-N", node)

    def of_node(self, node: str) -> list[psutil.Process]:
        """The node's slurmd and its slurmstepds, which inherit its variables, then all processes of jobs on it."""
        wanted = {ROOT_VARIABLE: str(self.layout.root), DAEMON_VARIABLE: node}
        return self._with_jobs(processes.matching(wanted), {"SLURMD_NODENAME": node})

    def slurmd_of(self, node: str) -> list[psutil.Process]:
        wanted = {ROOT_VARIABLE: str(self.layout.root), DAEMON_VARIABLE: node}
        return [process for process in processes.matching(wanted) if process.name() == "slurmd"]

    def all(self) -> list[psutil.Process]:
        """Every process of the cluster and its jobs, the daemons first."""
        return self._with_jobs(processes.matching({ROOT_VARIABLE: str(self.layout.root)}), {"SLURMD_NODENAME": None})

    def last_words(self) -> str:
        """The end of each log, for the message about a start that failed."""
        logs = sorted(self.layout.logs.glob("*")) if self.layout.logs.exists() else []
        return "\n".join(f"--- {log.name}\n{_tail(log)}" for log in logs)

    def _with_jobs(self, daemons: list[psutil.Process], of_jobs: dict[str, str | None]) -> list[psutil.Process]:
        # A user's shell has SLURM_CONF too, but not SLURMD_NODENAME.
        jobs = processes.matching({"SLURM_CONF": str(self.layout.slurm_conf), **of_jobs})
        return processes.unique([*daemons, *processes.descendants([*daemons, *jobs]), *jobs])

    def _spawn(self, name: str, *command: str) -> None:
        processes.spawn(list(command), env=self._env(name), log=self.layout.logs / f"{name}.out")

    def _env(self, name: str) -> dict[str, str]:
        return {
            "PATH": SYSTEM_PATH,
            "SLURM_CONF": str(self.layout.slurm_conf),
            "MYSQL_UNIX_PORT": str(self.layout.database_socket),
            ROOT_VARIABLE: str(self.layout.root),
            DAEMON_VARIABLE: name,
        }


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-12:])
