"""Training on a real Slurm cluster without NeMo-Run: by plain sbatch, and by submitit."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from typer.testing import CliRunner

from nemo_resiliency_plugins.cli.main import app
from nemo_resiliency_plugins.contract import Attempt, Verdict
from tests.harness import SCRIPTS, Traces, json_lines, wait_for
from tests.slurm.submitting import SEVERAL_LAUNCHERS_ON_A_HOST, preempt
from tests.slurm.test_inprocess import QUICK, lives
from tests.slurm.testbed import Cluster, packages

ALONE = ["--steps", "30", "--every", "5", "--step-s", "0.1"]
TWO_FAULTS = "kill@1:8,kill@0:18"
"""With one restart in the job, the second one ends the attempt."""
A_LIMIT_THAT_MEANS_REQUEUE = "--time=2"

IGNORES = """\
import os, pathlib, signal, time

signal.signal(signal.SIGTERM, signal.SIG_IGN)
root = pathlib.Path(os.environ["TEST_ROOT"])
(root / f"started-{os.environ['SLURM_JOB_ID']}").touch()
while not (root / "go").exists():
    time.sleep(0.05)
"""


def variables(root: Path) -> dict[str, str]:
    return {"TEST_ROOT": str(root), "NRP_ALLOW_LOOPBACK": "1", **SEVERAL_LAUNCHERS_ON_A_HOST}


def printed(
    root: Path, goal: str, *options: str, script: str = "trainer.py", arguments: list[str] = ALONE, size: int = 2
) -> str:
    """What ``nemo-resiliency sbatch`` prints for ``size`` nodes with as many ranks each."""
    request = ["--nodes", str(size), "--ranks-per-node", str(size), "--directory", f"{root}/nrp"]
    env = [f"--env={name}={value}" for name, value in variables(root).items()]
    command = ["--python", sys.executable, "--", "python", str(SCRIPTS / script), *arguments]
    words = ["sbatch", goal, *request, *env, f"--option=--output={root}/log.txt", *options, *command]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    return done.output


def traces(root: Path, job_id: str) -> Traces:
    return Traces(root, root / "nrp" / job_id)


def log(root: Path) -> str:
    return (root / "log.txt").read_text()[-6000:]


def policy(root: Path, job_id: str) -> dict[str, object]:
    [content] = json_lines(root / "nrp" / job_id / "policy.json")
    return dict(content)


def resumed(root: Path, job_id: str) -> list[tuple[str, int | None]]:
    """Attempt and step of each start of the ranks, in order."""
    events = traces(root, job_id).events("resumed", rank=0)
    return [(event["attempt"].partition("-")[2], event["step"]) for event in events]


def test_a_failed_attempt_is_followed_by_another_in_the_allocation(cluster: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os, sys; os.path.exists('tried') or [open('tried', 'w').close(), sys.exit(42)]")
    options = ["--retries=1", f"--option=--chdir={tmp_path}", "--option=--time=10"]
    job_id = cluster.sbatch(printed(tmp_path, "inprocess", *options, script=str(script), arguments=[], size=1))
    rows = cluster.wait_for_end(job_id, 120.0)
    assert [row["State"] for row in rows] == ["COMPLETED"], log(tmp_path)
    assert "ended with 42: failed" in (tmp_path / "log.txt").read_text()
    assert policy(tmp_path, job_id) | {"attempts": 1, "attempt": f"{job_id}-0-1"} == policy(tmp_path, job_id)


@pytest.mark.slow
def test_under_fault_tolerance_a_killed_rank_costs_a_restart_and_a_failed_attempt_a_requeue(
    cluster: Cluster, tmp_path: Path
) -> None:
    fields = ["--set=num_in_job_restarts=1", f"--set=fault_script={TWO_FAULTS}", "--set=warmup_steps=2"]
    text = printed(tmp_path, "fault-tolerance", *fields, f"--option={A_LIMIT_THAT_MEANS_REQUEUE}")
    job_id = cluster.sbatch(text)
    rows = cluster.wait_for_end(job_id, 180.0)
    assert [row["State"] for row in rows] == ["REQUEUED", "COMPLETED"], log(tmp_path)
    assert resumed(tmp_path, job_id) == [("0-0", None), ("0-0", 5), ("1-0", 15)]
    assert policy(tmp_path, job_id) | {"why": "finished", "attempts": 1, "failures": 0} == policy(tmp_path, job_id)
    assert (tmp_path / "result.txt").exists()


@pytest.mark.slow
def test_under_torchrun_a_preempted_job_saves_and_comes_back(cluster: Cluster, tmp_path: Path) -> None:
    arguments = ["--steps", "100", "--every", "1000", "--step-s", "0.1"]
    text = printed(tmp_path, "preemption", "--option=--time=10", arguments=arguments)
    job_id = cluster.sbatch(text)
    wait_for(lambda: len(traces(tmp_path, job_id).steps()) > 5, deadline_s=90, what="some steps")
    cluster.cancel(job_id, "--signal=TERM")
    rows = cluster.wait_for_end(job_id, 180.0)
    assert [row["State"] for row in rows] == ["REQUEUED", "COMPLETED"], log(tmp_path)
    [stopped] = {event["step"] for event in traces(tmp_path, job_id).events("preempted")}
    assert resumed(tmp_path, job_id) == [("0-0", None), ("1-0", stopped)]
    assert policy(tmp_path, job_id) | {"attempts": 0, "failures": 0} == policy(tmp_path, job_id)


@pytest.mark.slow
def test_at_the_time_limit_the_batch_shell_is_told_and_passes_it_on(cluster: Cluster, tmp_path: Path) -> None:
    arguments = ["--steps", "150", "--every", "1000", "--step-s", "0.4"]  # longer than until the limit
    fields = ["--set=scope=batch", "--set=preempt_time=5", "--set=signal=USR2"]
    job_id = cluster.sbatch(printed(tmp_path, "preemption", *fields, "--option=--time=10", arguments=arguments))
    wait_for(lambda: len(traces(tmp_path, job_id).steps()) > 5, deadline_s=90, what="some steps")
    cluster.set_end_time(job_id, 34)
    rows = cluster.wait_for_end(job_id, 180.0)
    assert [row["State"] for row in rows] == ["REQUEUED", "COMPLETED"], log(tmp_path)
    [stopped] = {event["step"] for event in traces(tmp_path, job_id).events("preempted")}
    assert resumed(tmp_path, job_id) == [("0-0", None), ("1-0", stopped)]


@pytest.mark.slow
def test_a_job_that_slurm_does_not_bring_back_goes_on_in_its_directory(cluster: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(IGNORES)
    options = ["--option=--partition=cancel", "--option=--time=10"]
    job_id = cluster.sbatch(printed(tmp_path, "preemption", *options, script=str(script), arguments=[], size=1))
    wait_for((tmp_path / f"started-{job_id}").exists, deadline_s=90, what="the script")
    preempt(cluster)
    following = str(wait_for(lambda: policy(tmp_path, job_id)["next"], deadline_s=120, what="the next job"))
    assert cluster.job(following)["Comment"] == f"continues job {job_id}"
    wait_for((tmp_path / f"started-{following}").exists, deadline_s=90, what="the script in the next job")
    (tmp_path / "go").touch()
    assert cluster.wait_for_end(following)[-1]["State"] == "COMPLETED", log(tmp_path)
    assert [path.name for path in (tmp_path / "nrp").iterdir()] == [job_id], "it has no directory of its own"
    assert policy(tmp_path, job_id) | {"job": following, "idle": 1} == policy(tmp_path, job_id)


@pytest.mark.slow
def test_in_process_a_lost_rank_is_replaced(cluster: Cluster, tmp_path: Path) -> None:
    fields = {**QUICK, "active_world_size": 2, "granularity": "rank"}
    options = [f"--set={name}={value}" for name, value in fields.items()]
    faults = {"NRP_FAULT_TOLERANCE__FAULT_SCRIPT": "kill@1:12", "MASTER_ADDR": "127.0.0.1"}
    options += [f"--env={name}={value}" for name, value in faults.items()]
    text = printed(tmp_path, "inprocess", *options, "--option=--time=10", script="inprocess_trainer.py")
    job_id = cluster.sbatch(text)
    rows = cluster.wait_for_end(job_id, 180.0)
    assert [row["State"] for row in rows] == ["COMPLETED"], log(tmp_path)
    seen = lives(traces(tmp_path, job_id))  # type: ignore[arg-type]
    assert {rank for life, rank in seen if life == 1} == {0, 1, None}
    assert [step for _, step in resumed(tmp_path, job_id)] == [None, 10]
    assert policy(tmp_path, job_id)["why"] == "finished"


@pytest.mark.slow
def test_under_submitit_the_same_policy_brings_the_job_back(cluster: Cluster, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "submitit_command.py"), TWO_FAULTS, *ALONE],
        env={**os.environ, **cluster.env, **variables(tmp_path)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    said = "".join(path.read_text() for path in sorted((tmp_path / "submitit").glob("*.out")))
    assert done.returncode == 0, done.stderr + said
    job_id, results = done.stdout.strip().splitlines()[-1].split(" ", 1)
    assert results == "[None, None]", "one a node, when the training has finished"
    assert resumed(tmp_path, job_id) == [("0-0", None), ("0-0", 5), ("1-0", 15)], said
    verdict = Verdict.read(tmp_path / "nrp" / job_id, Attempt(job_id=job_id, restart_count=1))
    assert verdict is not None
    assert verdict.reason.value == "finished"


@pytest.mark.parametrize("goal", ["fault-tolerance", "preemption", "inprocess"])
def test_the_scripts_are_clean(tmp_path: Path, goal: str) -> None:
    with mock.patch.dict(packages.PACKAGE_OF, {"shellcheck": "shellcheck"}):
        packages.require()
    script = tmp_path / "script"
    script.write_text(printed(tmp_path, goal, "--with=straggler", "--with=preemption", "--set=preemption.scope=batch"))
    shellcheck = shutil.which("shellcheck", path=packages.SYSTEM_PATH)
    assert shellcheck is not None
    done = subprocess.run([shellcheck, "--severity=style", str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
