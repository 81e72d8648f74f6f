"""Submits tasks to the testbed through NeMo-Run, as a user does."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import nemo_run as run
import psutil

from nemo_resiliency_plugins.contract import ENV_NODE_RUN
from tests.harness import Traces
from tests.slurm.testbed import Cluster, processes

SEVERAL_LAUNCHERS_ON_A_HOST = {"NVRX_ENABLE_MULTI_LAUNCHERS_PER_NODE": "1"}
"""NVRx 0.6 and later refuse what the testbed does: all its nodes are one host."""


@dataclasses.dataclass(frozen=True)
class Submitted(Traces):
    """A job of the cluster and what it leaves behind."""

    cluster: Cluster
    job_id: str
    directory: Path
    experiment: run.Experiment

    @property
    def log(self) -> str:
        return "".join(path.read_text(errors="replace") for path in sorted(self.directory.glob("*.out")))

    def policy(self, name: str = "policy") -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.nrp / f"{name}.json").read_text())
        return content

    def attempts(self) -> list[str]:
        """The attempts in which a rank was started: restart count and round."""
        return sorted({event["attempt"].partition("-")[2] for event in self.events("rank_started")})

    def status(self) -> str:
        """What NeMo-Run says of the job."""
        with as_on_a_terminal(self.cluster):
            [told] = self.experiment.status(return_dict=True).values()
        return str(told["status"])

    def running(self) -> list[psutil.Process]:
        """What the job's node scripts have started, on any node, and still runs."""
        mark = f"{self.job_id}-"
        marked = (each for each in psutil.process_iter() if _mark(each.pid).startswith(mark))
        return processes.unique(marked)

    def launchers(self, node: int) -> list[psutil.Process]:
        """The launchers of the first attempt on this node."""
        marked = [each for each in self.running() if _mark(each.pid) == f"{self.job_id}-0-0-node{node}"]
        inside = {each.pid for each in marked}
        return [each for each in marked if each.ppid() not in inside and "ft_launcher" in " ".join(each.cmdline())]

    def ended(self, deadline_s: float = 120.0) -> tuple[str, str]:
        """State and exit code in the accounting, when the job has ended for good."""
        last = self.cluster.wait_for_end(self.job_id, deadline_s)[-1]
        return last["State"].split()[0], last["ExitCode"]


def _mark(pid: int) -> str:
    return processes.environment(pid).get(ENV_NODE_RUN, "")


@contextmanager
def as_on_a_terminal(cluster: Cluster) -> Iterator[None]:
    """The cluster's environment; NeMo-Run passes its own standard input on to the commands that it runs."""
    with mock.patch.dict(os.environ, cluster.variables), mock.patch.object(sys, "stdin", io.StringIO()):
        yield


def submit(
    cluster: Cluster,
    root: Path,
    task: Any,
    plugins: Sequence[run.Plugin],
    *,
    env: Mapping[str, str] | None = None,
    executors: int = 1,
    **options: Any,
) -> Submitted:
    """Submit ``task``, or a group of tasks, from ``root``, which is also ``TEST_ROOT``.

    ``executors``: how many equal ones a group gets; ``options`` are those of SlurmExecutor.
    """
    executor = slurm_executor(root, env=env, **options)
    several = executor if executors == 1 else [executor.clone() for _ in range(executors)]
    return submit_to(cluster, root, task, several, plugins)


def slurm_executor(root: Path, *, env: Mapping[str, str] | None = None, **options: Any) -> run.SlurmExecutor:
    """An executor of the cluster for what is submitted from ``root``; ``options`` are its fields."""
    return run.SlurmExecutor(
        account="root",
        tunnel=run.LocalTunnel(job_dir=str(root / "nemorun" / "experiments")),
        env_vars={"TEST_ROOT": str(root), **SEVERAL_LAUNCHERS_ON_A_HOST, **(env or {})},
        poll_estimated_start_time=False,
        **{"packager": run.Packager(), **options},
    )


def submit_to(cluster: Cluster, root: Path, task: Any, executor: Any, plugins: Sequence[run.Plugin]) -> Submitted:
    """Submit to the executor that was made for ``root``, or to a list of such ones."""
    root.mkdir(parents=True, exist_ok=True)
    quiet = {"enable_goodbye_message": False, "skip_status_at_exit": True}
    with (
        as_on_a_terminal(cluster),
        run.Experiment("job", base_dir=str(root / "nemorun"), **quiet) as experiment,
    ):
        experiment.add(task, executor=executor, plugins=list(plugins), name="task")
        experiment.run(detach=True)
        [job] = experiment.jobs
    directory = Path(job.executor.job_dir)
    return Submitted(root, directory / "nrp", cluster, job.handle.rpartition("/")[2], directory, experiment)


def preempt(cluster: Cluster) -> None:
    """Let a job of higher priority take all nodes for a moment."""
    cluster.sbatch("sleep 1", "--partition=high", "--nodes=3", "--exclusive", "--output=/dev/null")
