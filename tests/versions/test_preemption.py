"""A preemption under each version of nvidia-resiliency-ext: its launcher neither dies of the signal nor cuts a save."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from nemo_resiliency_plugins import FaultTolerancePlugin, PreemptionPlugin
from nemo_resiliency_plugins.contract import ENV_DIR, ENV_ROUND, Attempt, Reason, Verdict
from tests.harness import BIN, SCRIPTS, Job, ended_afterwards, run, spawn, wait_for
from tests.slurm.testbed import processes
from tests.versions.conftest import version_env
from tests.versions.nodes import JOB_ID, node_variables, write_job
from tests.versions.unpacked import VERSIONS

STEPS = 40
ARGUMENTS = ("--steps", str(STEPS), "--every", "1000", "--step-s", "0.1")
NODES = 2
DEADLINE_S = 90.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def start(root: Path, version: str, name: str, round_: int) -> list[Job]:
    command = [sys.executable, "-m", "nemo_resiliency_plugins.runtime.node"]
    command += ["python", str(SCRIPTS / "trainer.py"), *ARGUMENTS]
    shared = {**version_env(version), "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", ENV_ROUND: str(round_)}
    variables = [node_variables(root, name, number, NODES) for number in range(NODES)]
    return [spawn(root, command, {**own, **shared}) for own in variables]


def signal_all(root: Path) -> None:
    """As Slurm does: every process of the step, in no order that matters."""
    for process in processes.matching({ENV_DIR: str(root / "nrp")}):
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGTERM)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    return run(tmp_path_factory.mktemp("undisturbed"), "trainer.py", ARGUMENTS, ranks=NODES).succeed().result()


@pytest.mark.parametrize("version", VERSIONS)
def test_the_ranks_save_and_leave_and_the_launcher_with_them(tmp_path: Path, undisturbed: str, version: str) -> None:
    name = f"{JOB_ID}-preempted-{version}"
    write_job(tmp_path, FaultTolerancePlugin(start_skew_s=60), PreemptionPlugin(), nodes=NODES, ranks_per_node=1)
    nodes = start(tmp_path, version, name, 0)
    with ended_afterwards(*nodes):
        wait_for(lambda: len(nodes[0].steps()) > 5, deadline_s=DEADLINE_S, what="five steps")
        signal_all(tmp_path)
        for node in nodes:
            node.succeed(DEADLINE_S)
    verdict = Verdict.read(tmp_path / "nrp", Attempt(name))
    assert verdict is not None
    assert (verdict.reason, verdict.code) == (Reason.PREEMPTED, 0)
    assert {event["step"] for event in nodes[0].events("preempted")} == {verdict.step}
    again = start(tmp_path, version, name, 1)
    with ended_afterwards(*again):
        for node in again:
            node.succeed(DEADLINE_S)
    assert [event["step"] for event in nodes[0].events("resumed", rank=0)] == [None, verdict.step]
    assert nodes[0].result() == undisturbed
