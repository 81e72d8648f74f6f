"""A submission from a laptop: everything that the job needs goes to the cluster by ssh and rsync."""

from __future__ import annotations

import dataclasses
import gc
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import nemo_run as run
import pytest

from nemo_resiliency_plugins import FaultTolerancePlugin
from nemo_resiliency_plugins.contract import CONFIG_FILE, MONITOR_FILE, RUNTIME_FILE
from tests.slurm.submitting import Submitted
from tests.slurm.testbed import Cluster
from tests.slurm.testbed.sshd import HOST, LoginNode, login_node

SCRIPT = """
import os
import nemo_resiliency_plugins
from nemo_resiliency_plugins import runtime

print("script", __file__)
print("runtime", nemo_resiliency_plugins.__file__)
print("monitored", "FT_RANK_MONITOR_IPC_SOCKET" in os.environ)
with runtime.session() as session:
    for step in session.steps(0, 3):
        print("step", step)
"""


@dataclasses.dataclass(frozen=True)
class FromLaptop:
    """The job as the cluster has it, NeMo-Run's status of it, and the job directory on the laptop."""

    job: Submitted
    end: tuple[str, str]
    status: str
    local: Path


@pytest.fixture
def login(cluster: Cluster, tmp_path: Path) -> Iterator[LoginNode]:
    with login_node(tmp_path / "login", cluster) as node:
        yield node
    # Now, while it is ignored that NeMo-Run leaves pipes open: at the end of all tests it would be an error.
    gc.collect()


def submit_from(laptop: Path, remote: Path, login: LoginNode, cluster: Cluster) -> FromLaptop:
    """Submit ``train.py`` of ``laptop``, where nothing but the way to the login node is known of the cluster."""
    tunnel = run.SSHTunnel(
        host=HOST, user="root", port=login.port, identity=str(login.identity), job_dir=str(remote / "experiments")
    )
    packager = run.PatternPackager(include_pattern=str(laptop / "train.py"), relative_path=str(laptop))
    executor = run.SlurmExecutor(account="root", tunnel=tunnel, packager=packager, poll_estimated_start_time=False)
    task = run.Script("train.py", entrypoint="python")
    path = f"{login.laptop_bin}:{os.environ['PATH']}"
    experiment = run.Experiment("job", base_dir=str(laptop), enable_goodbye_message=False, skip_status_at_exit=True)
    with (
        mock.patch.dict(os.environ, {"PATH": path}),
        # NeMo-Run passes its own standard input on to the commands that it runs.
        mock.patch.object(sys, "stdin", io.StringIO()),
    ):
        with experiment:
            experiment.add(task, executor=executor, plugins=[FaultTolerancePlugin()], name="task")
            experiment.run(detach=True)
            [job] = experiment.jobs
        local = Path(job.executor.job_dir)
        directory = Path(job.executor.tunnel.job_dir) / local.name
        submitted = Submitted(remote, directory / "nrp", cluster, job.handle.rpartition("/")[2], directory, experiment)
        end = submitted.ended()
        [told] = experiment.status(return_dict=True).values()
        tunnel.cleanup()
    return FromLaptop(submitted, end, str(told["status"]), local)


def test_a_laptop_needs_nothing_on_the_cluster_but_ssh(cluster: Cluster, tmp_path: Path, login: LoginNode) -> None:
    laptop, remote = tmp_path / "laptop", tmp_path / "remote"
    laptop.mkdir()
    (laptop / "train.py").write_text(SCRIPT)
    done = submit_from(laptop, remote, login, cluster)
    job = done.job
    assert (done.end, done.status) == (("COMPLETED", "0:0"), "SUCCEEDED"), job.log
    assert job.directory.is_relative_to(remote)
    assert f"script {job.directory}/code/train.py" in job.log
    assert f"runtime {job.nrp / RUNTIME_FILE}/" in job.log
    assert "monitored True" in job.log
    assert {CONFIG_FILE, MONITOR_FILE, RUNTIME_FILE, "policy.json"} <= {path.name for path in job.nrp.iterdir()}
    assert [event["step"] for event in job.events("finished")] == [3]
    assert not list(done.local.glob("nrp/policy*")), "the job wrote to the laptop"
