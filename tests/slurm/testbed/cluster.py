"""A cluster as a whole: starts and stops it, and takes nodes away."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from tests.harness import BIN, wait_for
from tests.slurm.testbed import processes
from tests.slurm.testbed.client import Client, SlurmError
from tests.slurm.testbed.daemons import Daemons
from tests.slurm.testbed.layout import NODES, Layout
from tests.slurm.testbed.packages import SYSTEM_PATH, TestbedError, require

DEFAULT_ROOT = Path("/tmp/nrp-slurm")
START_DEADLINE_S = 60.0
# Unix sockets with names of up to 40 characters lie below it; the kernel's limit is 107.
LONGEST_ROOT = 60
FOREIGN = ("SLURM", "SBATCH", "SACCT", "SQUEUE", "SINFO", "SRUN")


class Cluster(Client):
    """The cluster under one directory, running or not."""

    def __init__(self, root: Path = DEFAULT_ROOT) -> None:
        layout = Layout(root.absolute())
        base = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        # Jobs inherit it: they find the python and the ft_launcher of these tests, as from an activated environment.
        self.variables = layout.variables(f"{BIN}:{base.get('PATH', SYSTEM_PATH)}")
        """What a process has to export to work with the cluster."""
        super().__init__(layout, {**base, **self.variables})
        self._daemons = Daemons(layout)

    def start(self) -> None:
        """Install what is missing, end what an earlier start left under this root, and start afresh.

        Raises:
            TestbedError: the cluster cannot be started here; nothing is left running.
        """
        if len(str(self.layout.root)) > LONGEST_ROOT:
            raise TestbedError(f"root={self.layout.root}: at most {LONGEST_ROOT} characters, for the sockets below it")
        require()
        self.stop()
        with ExitStack() as undo:
            undo.callback(self.stop)
            try:
                self._start()
            except (OSError, SlurmError, subprocess.SubprocessError) as error:
                raise TestbedError(f"{error}\n{self._daemons.last_words()}") from error
            undo.pop_all()

    def _start(self) -> None:
        self.layout.write()
        self._daemons.munged()
        self._daemons.mariadbd()
        self._daemons.slurmdbd()
        # Without slurmdbd a slurmctld that has never run before gives up.
        self._answers("sacctmgr", "show", "cluster")
        self._daemons.slurmctld()
        for name in NODES:
            self._daemons.slurmd(name)
        self._answers("scontrol", "ping")
        self._all_idle(START_DEADLINE_S)

    def stop(self) -> None:
        """End every process of the cluster, those of its jobs included, and remove its files."""
        root = self.layout.root
        if root.exists() and any(root.iterdir()) and not self.layout.slurm_conf.exists():
            raise TestbedError(f"{root} is not empty and holds no testbed")
        processes.kill(self._daemons.all)
        shutil.rmtree(root, ignore_errors=True)

    @property
    def running(self) -> bool:
        """Whether controller and accounting answer."""
        return (
            self.layout.slurm_conf.exists()
            and self._succeeds("sacctmgr", "show", "cluster")
            and self._succeeds("sinfo")
        )

    def lose_node(self, name: str, *, declare: bool = False) -> None:
        """Kill the node's slurmd, the steps on it and all their processes, the daemons first, so that none reports.

        Slurm notices after about 20 s, or at once with ``declare``, as when a health check takes the node down. Peers
        of the killed processes notice at once, because the kernel closes their connections.
        """
        processes.kill(lambda: self._daemons.of_node(name))
        if declare:
            self.run("scontrol", "update", f"NodeName={name}", "State=DOWN", "Reason=lost")

    def restore_node(self, name: str, deadline_s: float = 60.0) -> None:
        """Start the node's slurmd again, and wait until jobs can run there."""
        if not self._daemons.slurmd_of(name):
            self._daemons.slurmd(name)
        wait_for(lambda: self._in_service(name), deadline_s=deadline_s, what=f"node {name} in service")

    def settle(self, deadline_s: float = 60.0) -> None:
        """Cancel all jobs, restore all nodes, and wait until nothing runs: the cluster as the next test wants it."""
        self.run("scancel", "--full", "--user=root")
        for name in NODES:
            self.restore_node(name, deadline_s)
        self._all_idle(deadline_s)

    def add_image(self, name: str, env: Mapping[str, str]) -> str:
        """An image to name in ``--container-image``. Its variables, and those of ``base``, win over the job's."""
        self.layout.write_image(name, env)
        return name

    def _in_service(self, name: str) -> bool:
        state = self.nodes()[name]
        if "DRAIN" in state:
            # Slurm drains a node on which a job could not be started or killed.
            self.run("scontrol", "update", f"NodeName={name}", "State=RESUME")
        return state in {"IDLE", "MIXED", "ALLOCATED"}

    def _all_idle(self, deadline_s: float) -> None:
        wait_for(lambda: set(self.nodes().values()) == {"IDLE"}, deadline_s=deadline_s, what="all nodes idle")

    def _answers(self, *command: str) -> None:
        wait_for(
            lambda: self._succeeds(*command), deadline_s=START_DEADLINE_S, what=f"an answer to {' '.join(command)}"
        )

    def _succeeds(self, *command: str) -> bool:
        try:
            self.run(*command)
        except (SlurmError, subprocess.TimeoutExpired):
            return False
        return True
