"""A submission from a laptop: everything that the job needs goes to the cluster by ssh and rsync."""

from __future__ import annotations

import dataclasses
import gc
import importlib.metadata
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import nemo_run as run
import pytest

from nemo_resiliency_plugins import FaultTolerancePlugin, contract
from nemo_resiliency_plugins.contract import CONFIG_FILE, MONITOR_FILE, RUNTIME_FILE
from tests import laptop
from tests.harness import SCRIPTS, Traces, wait_for
from tests.slurm.submitting import Submitted
from tests.slurm.testbed import Cluster, packages
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
    assert f"runtime {VERSION} in {job.nrp / RUNTIME_FILE}, shipped with the job" in job.log
    assert {CONFIG_FILE, MONITOR_FILE, RUNTIME_FILE, "policy.json"} <= {path.name for path in job.nrp.iterdir()}
    assert [event["step"] for event in job.events("finished")] == [3]
    assert not list(done.local.glob("nrp/policy*")), "the job wrote to the laptop"


VERSION = importlib.metadata.version("nemo-resiliency-plugins")
SUBMIT = """
import json, sys
import nemo_run as run
from nemo_resiliency_plugins import CheckpointPlugin, FaultTolerancePlugin, PreemptionPlugin

given = json.loads(sys.argv[1])
tunnel = run.SSHTunnel(user="root", **given["tunnel"])
executor = run.SlurmExecutor(account="root", ntasks_per_node=2, time="00:10:00", tunnel=tunnel, **given["executor"])
executor.poll_estimated_start_time = False
task = run.Script("train.py", entrypoint="python", args=given["args"])
plugins = [FaultTolerancePlugin(**given["fault_tolerance"]), PreemptionPlugin(), CheckpointPlugin()]
with run.Experiment("drill") as experiment:
    experiment.add(task, executor=executor, plugins=plugins, name="task")
    experiment.run(detach=True)
    [job] = experiment.jobs
    print(json.dumps(["submitted", job.handle.rpartition("/")[2], job.executor.tunnel.job_dir]))
assert "torch" not in sys.modules
"""
STATUS = """
import nemo_run as run

with run.Experiment.from_title("drill") as experiment:
    [told] = experiment.status(return_dict=True).values()
    print("status", told["status"])
"""
LOGS = STATUS + "    experiment.logs('task')\n"
CANCEL = STATUS + "    experiment.cancel('task')\n"
SHOWING = """
import os
print({name: os.environ[name] for name in ("NRP_STRICT", "NRP_CONFIG", "OF_IMAGE")})
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The laptop's: it has neither torch nor NVRx."""
    return laptop.make(tmp_path_factory.mktemp("laptop") / "venv")


@dataclasses.dataclass(frozen=True)
class Laptop:
    """A user's machine with a committed project; each command is a process of its own, as a user starts them."""

    root: Path
    python: Path
    login: LoginNode
    remote: Path

    def project(self, *files: Path, **texts: str) -> None:
        self.root.mkdir()
        for file in files:
            shutil.copy(file, self.root / file.name.replace("trainer", "train"))
        for name, text in texts.items():
            (self.root / f"{name}.py").write_text(text)
        (self.root / ".gitignore").write_text("home\n")
        git = ["git", "-c", "user.name=me", "-c", "user.email=me@here"]
        for command in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message=x"]):
            subprocess.run([*git, *command], cwd=self.root, check=True)

    def run(self, code: str, *arguments: str) -> str:
        env = {
            "PATH": f"{self.login.laptop_bin}:{packages.SYSTEM_PATH}",
            "HOME": str(self.root / "home"),
            "COLUMNS": "300",
        }
        command = [str(self.python), "-c", code, *arguments]
        done = subprocess.run(
            command, env=env, cwd=self.root, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout + done.stderr

    def submit(self, fault_tolerance: dict[str, Any], args: list[str], **executor: Any) -> tuple[str, Path]:
        """The job's id and its directory on the cluster."""
        node = {"host": HOST, "port": self.login.port, "identity": str(self.login.identity)}
        tunnel = {**node, "job_dir": str(self.remote / "experiments")}
        given = {"tunnel": tunnel, "fault_tolerance": fault_tolerance, "args": args, "executor": executor}
        output = self.run(SUBMIT, json.dumps(given))
        [line] = [line for line in output.splitlines() if line.startswith('["submitted"')]
        _, job_id, directory = json.loads(line)
        return job_id, Path(directory) / "task"


def log_of(directory: Path) -> str:
    return "".join(path.read_text(errors="replace") for path in sorted(directory.glob("*.out")))


@pytest.fixture
def machine(python: Path, login: LoginNode, tmp_path: Path) -> Laptop:
    return Laptop(tmp_path / "project", python, login, tmp_path / "remote")


@pytest.mark.slow
def test_a_laptop_without_torch_submits_a_training_that_recovers(
    cluster: Cluster, tmp_path: Path, machine: Laptop
) -> None:
    machine.project(SCRIPTS / "trainer.py", SCRIPTS / "tiny.py")
    older = tmp_path / "image"
    shutil.copytree(Path(contract.__file__).parent, older / "nemo_resiliency_plugins")
    (older / "nemo_resiliency_plugins-0.0.9.dist-info").mkdir()
    metadata = "Metadata-Version: 2.1\nName: nemo-resiliency-plugins\nVersion: 0.0.9\n"
    (older / "nemo_resiliency_plugins-0.0.9.dist-info" / "METADATA").write_text(metadata)
    env = {"TEST_ROOT": str(tmp_path), "PYTHONPATH": str(older)}
    args = ["--steps", "20", "--every", "5", "--step-s", "0.1"]
    job_id, directory = machine.submit({"fault_script": "kill@1:8"}, args, env_vars=env)
    cluster.wait_for_end(job_id, 180.0)
    log, job = log_of(directory), Traces(tmp_path, directory / "nrp")
    assert cluster.sacct(job_id)[-1]["State"] == "COMPLETED", log
    assert [event["kind"] for event in job.events("fault_injected")] == ["kill"]
    assert [event["step"] for event in job.events("resumed", rank=0)] == [None, 5]
    assert {event["step"] for event in job.events("finished")} == {20}
    zipped = directory / "nrp" / RUNTIME_FILE
    assert log.count(f"runtime {VERSION} in {zipped}, shipped with the job") == 1
    assert f"runtime 0.0.9 in {older} is there as well and not used: {VERSION} in {zipped} is" in log
    told = machine.run(LOGS)
    assert "status SUCCEEDED" in told
    assert "shipped with the job" in told


@pytest.mark.slow
def test_what_plugins_set_reaches_a_container_that_sets_it_too(cluster: Cluster, machine: Laptop) -> None:
    image = cluster.add_image("own-mind", {"NRP_STRICT": "false", "NRP_CONFIG": "/nowhere", "OF_IMAGE": "kept"})
    machine.project(train=SHOWING)
    job_id, directory = machine.submit({"strict": True}, [], container_image=image)
    cluster.wait_for_end(job_id, 120.0)
    shown = {"NRP_STRICT": "true", "NRP_CONFIG": "/nemo_run/nrp/config.json", "OF_IMAGE": "kept"}
    assert str(shown) in log_of(directory)


@pytest.mark.slow
def test_another_process_of_the_laptop_follows_and_cancels_the_job(
    cluster: Cluster, tmp_path: Path, machine: Laptop
) -> None:
    machine.project(SCRIPTS / "trainer.py", SCRIPTS / "tiny.py")
    args = ["--steps", "100000", "--every", "1000", "--step-s", "0.1"]
    job_id, directory = machine.submit({}, args, env_vars={"TEST_ROOT": str(tmp_path)})
    job = Traces(tmp_path, directory / "nrp")
    wait_for(lambda: len(job.steps()) > 3, deadline_s=90, what="some steps")
    assert "status RUNNING" in machine.run(STATUS)
    cluster.run("scontrol", "requeuehold", job_id)
    cluster.wait_for_state(job_id, "PENDING")
    assert "status PENDING" in machine.run(STATUS), "NeMo-Run alone says FAILED"
    cluster.run("scontrol", "release", job_id)
    cluster.wait_for_restart(job_id, 1)
    machine.run(CANCEL)
    assert cluster.wait_for_end(job_id)[-1]["State"].startswith("CANCELLED")
    assert job.events("preempted"), "it has saved"
