"""The command line against jobs of a real cluster: here, from a laptop, and on a node."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from nemo_resiliency_plugins import PreemptionPlugin
from nemo_resiliency_plugins.plugins.base import ResiliencyPlugin
from tests.harness import BIN, wait_for
from tests.slurm.submitting import Submitted, submit
from tests.slurm.test_fault_tolerance import plugin, script
from tests.slurm.testbed import Cluster
from tests.slurm.testbed.sshd import HOST, LoginNode, login_node

pytestmark = pytest.mark.slow

TRAINS = """
import time, pathlib
from nemo_resiliency_plugins import runtime
with runtime.session() as session:
    for step in session.steps(0, 100000):
        time.sleep(0.1)
        if pathlib.Path({go!r}).exists():
            session.stop()
"""


@pytest.fixture
def login(cluster: Cluster, tmp_path: Path) -> Iterator[LoginNode]:
    with login_node(tmp_path / "login", cluster) as node:
        yield node


def command(*arguments: object, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    words = [str(BIN / "nemo-resiliency"), *map(str, arguments)]
    return subprocess.run(words, env={**os.environ, **env}, capture_output=True, text=True, timeout=150, check=False)


def training(cluster: Cluster, root: Path, plugins: Sequence[ResiliencyPlugin] = ()) -> Submitted:
    root.mkdir()
    job = submit(cluster, root, script(root, TRAINS.format(go=str(root / "go"))), plugins or [plugin()], nodes=2)
    wait_for(lambda: job.events("first_step", rank=1), deadline_s=90, what=job.log)
    return job


def test_a_rank_on_another_node_is_hit_through_slurm(cluster: Cluster, tmp_path: Path, login: LoginNode) -> None:
    job = training(cluster, tmp_path / "job")
    done = command("faults", job.directory, "kill", "--rank", 1, "--yes", env=cluster.variables)
    assert done.returncode == 0, done.stderr
    wait_for(lambda: [each for each in job.events("first_step", rank=1) if each["cycle"]], deadline_s=90, what=job.log)
    ssh = f"ssh -p {login.port} -i {login.identity}"
    laptop = {"PATH": f"{login.laptop_bin}:{os.environ['PATH']}", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    away = ["status", job.directory, "--host", f"root@{HOST}", "--ssh", ssh]
    told = command(*away, env=laptop)
    assert told.returncode == 0, told.stdout + told.stderr
    assert "running: step " in told.stdout
    assert re.search(r"failure: rank 1 on n2: killed by a signal \(injected: kill\)", told.stdout)
    (tmp_path / "job" / "go").touch()
    assert job.ended() == ("COMPLETED", "0:0"), job.log
    last = json.loads(command(*away, "--json", env=laptop).stdout)
    assert (last["state"], last["failures"][0]["first"]["node"]) == ("finished", "n2")


@pytest.mark.parametrize("listens", [True, False])
def test_a_preemption_of_a_job_without_the_plugin_is_warned_of(cluster: Cluster, tmp_path: Path, listens: bool) -> None:
    root = tmp_path / "job"
    plugins = [plugin(num_job_retries_on_failure=0), *([PreemptionPlugin()] if listens else [])]
    job = training(cluster, root, plugins)
    done = command("faults", job.directory, "preempt", "--rank", 1, "--yes", env=cluster.variables)
    assert done.returncode == 0, done.stderr
    assert ("the ranks die of it, unsaved" in done.stderr) is not listens
    wait_for(lambda: job.events("preempted") or job.events("rank_ended"), deadline_s=60, what=job.log)
    assert bool(job.events("preempted")) is listens
    told = command("report", job.directory, env=cluster.variables).stdout
    assert re.search(r"rank 1 on n2: injected: preempt", told), told
    cluster.cancel(job.job_id)


def test_the_code_of_a_rank_on_the_second_node_is_told_by_batch_script_and_report(
    cluster: Cluster, tmp_path: Path
) -> None:
    text = "import os, sys\nsys.exit(42 if os.environ['RANK'] == '1' else os.system('sleep 100'))"
    job = submit(cluster, tmp_path, script(tmp_path, text), [plugin(num_in_job_restarts=0)], nodes=2)
    assert job.ended(240) == ("FAILED", "42:0"), job.log
    assert job.attempts() == ["0-0", "0-1", "0-2"]
    lines = re.findall(r"attempt \S+ ended with 42: failed.*", job.log)
    assert len(lines) == 3, "the log of an attempt was lost"
    assert all("(first error: rank 1 on n2: SystemExit: 42), no checkpoint" in line for line in lines)
    told = command("report", job.directory, env=cluster.variables)
    assert told.returncode == 1
    assert "first failure: rank 1 on n2: exited with code 42" in told.stdout


def test_doctor_on_a_login_node_and_in_a_job(cluster: Cluster, tmp_path: Path) -> None:
    here = command("doctor", "--no-start", "--partition", "low", env=cluster.variables)
    assert here.returncode == 1
    assert re.search(r"PROBLEM +low: GraceTime +10 +a preempted job is killed after 10 s +Ask the site", here.stdout)
    assert "main: " not in here.stdout
    output = tmp_path / "doctor.json"
    batch = f"{BIN}/nemo-resiliency doctor --no-start --json > {output}"
    job_id = cluster.sbatch(batch, "--partition=main", "--output=/dev/null")
    cluster.wait_for_end(job_id, 120)
    found = {each["name"]: each for each in json.loads(output.read_text())}
    assert f"job {job_id}" in found["machine"]["value"]
    assert "main: MaxTime" in found and "low: MaxTime" not in found
