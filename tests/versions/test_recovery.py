"""Killed and stopped ranks under each version of nvidia-resiliency-ext, on one node and on two."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

import pytest

from nemo_resiliency_plugins import FaultTolerancePlugin
from nemo_resiliency_plugins.contract import Attempt, Reason, Verdict
from tests.harness import BIN, ENABLED, SCRIPTS, Job, Timeouts, ended_afterwards, run, spawn
from tests.runtime.conftest import Jobs
from tests.versions.conftest import version_env
from tests.versions.nodes import JOB_ID, node_variables, write_job
from tests.versions.unpacked import VERSIONS

AT_ONCE = 2
STEPS = 12
ARGUMENTS = ("--steps", str(STEPS), "--every", "4")
STEP_LIMIT_S = 3.0
WARMUP_STEPS = 2
KILLED, HUNG = (1, 5), (0, 9)
"""Rank and step of the two faults."""
KILL, HANG = f"kill@{KILLED[0]}:{KILLED[1]}", f"hang@{HUNG[0]}:{HUNG[1]}"
SCRIPTED = {
    **ENABLED,
    "NRP_FAULT_TOLERANCE__FAULT_SCRIPT": f"{KILL},{HANG}",
    "NRP_FAULT_TOLERANCE__WARMUP_STEPS": str(WARMUP_STEPS),
}
DEADLINE_S = 150.0


def job_id(version: str) -> str:
    return f"{JOB_ID}-{version}"


def one_node(root: Path, version: str) -> Job:
    return run(
        root,
        "trainer.py",
        ARGUMENTS,
        ranks=2,
        restarts=3,
        timeouts=Timeouts(step=STEP_LIMIT_S),
        env={**SCRIPTED, "NRP_JOB_ID": job_id(version), **version_env(version)},
        deadline_s=DEADLINE_S,
    )


def two_nodes(root: Path, version: str) -> Job:
    """The job of the head node, when the other one has ended as well."""
    fields = {"fault_script": KILL, "warmup_steps": WARMUP_STEPS, "start_skew_s": 60}
    write_job(root, FaultTolerancePlugin(**fields), nodes=2, ranks_per_node=1)
    shared = {**version_env(version), "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    command = [sys.executable, "-m", "nemo_resiliency_plugins.runtime.node"]
    command += ["python", str(SCRIPTS / "trainer.py"), *ARGUMENTS]
    variables = [node_variables(root, job_id(version), number, 2) for number in range(2)]
    nodes = [spawn(root, command, {**shared, **own}) for own in variables]
    with ended_afterwards(*nodes):
        head, _ = [node.succeed(DEADLINE_S) for node in nodes]
    return head


JOBS = {
    "undisturbed": partial(run, script="trainer.py", arguments=ARGUMENTS, ranks=2),
    **{f"one node, {version}": partial(one_node, version=version) for version in VERSIONS},
    **{f"two nodes, {version}": partial(two_nodes, version=version) for version in VERSIONS},
}
FAULTS = {"one node": [(0, "hang", HUNG[1]), (1, "kill", KILLED[1])], "two nodes": [(1, "kill", KILLED[1])]}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.parametrize("version", VERSIONS),
    pytest.mark.parametrize("place", list(FAULTS)),
]


@pytest.fixture
def job(jobs: Jobs, place: str, version: str) -> Job:
    return jobs[f"{place}, {version}"].result()


def test_every_fault_happens_once_and_costs_one_restart(job: Job, place: str) -> None:
    faults = [(event["rank"], event["kind"], event["step"]) for event in job.events("fault_injected")]
    assert sorted(faults) == FAULTS[place]
    # Not by cycle: 0.4.1 and 0.5.0 count on the node that failed alone.
    assert [len(job.events("rank_started", rank=rank)) for rank in range(2)] == [len(faults) + 1] * 2


def test_the_weights_are_those_of_an_undisturbed_run(job: Job, jobs: Jobs) -> None:
    assert job.result() == jobs["undisturbed"].result().result()


def test_the_verdict_is_finished(job: Job, version: str) -> None:
    verdict = Verdict.read(job.nrp, Attempt(job_id(version)))
    assert verdict is not None
    assert (verdict.reason, verdict.code, verdict.step) == (Reason.FINISHED, 0, STEPS)


def test_the_section_of_the_hang_is_named(job: Job, place: str) -> None:
    # By the stopped rank or by its peer, which waits for it in the same step and may be found first.
    hung = {event["hung"] for event in job.events("last_life")} - {None}
    assert hung == ({"step"} if place == "one node" else set())


def test_the_killed_rank_is_not_taken_for_a_hang(job: Job) -> None:
    first = job.events("last_life", rank=KILLED[0])[0]
    assert (first["section"], first["hung"]) == ("step", None)


def test_each_start_goes_on_from_the_newest_checkpoint(job: Job, place: str) -> None:
    resumed = [event["step"] for event in job.events("resumed", rank=1)]
    assert resumed == ([None, 4, 8] if place == "one node" else [None, 4])
