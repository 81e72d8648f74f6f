from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.harness import ENABLED, Job, Timeouts, run
from tests.runtime.conftest import Jobs

PREFIX = "NRP_FAULT_TOLERANCE__"
ARGUMENTS = ("--steps", "25", "--step-s", "0.1", "--every", "100")


def simulate(root: Path, kind: str) -> Job:
    wanted = {"SIMULATE_FAULT": "true", "SIMULATED_FAULT_TYPE": kind, "SIMULATED_FAULT_RANK": "1"}
    wanted |= {"SIMULATED_FAULT_BASE_DELAY": "1", "WARMUP_STEPS": "3"}
    env = {**ENABLED, **{PREFIX + name: value for name, value in wanted.items()}}
    return run(root, "loop.py", ARGUMENTS, ranks=2, restarts=1, timeouts=Timeouts(step=1.5), env=env)


JOBS = {kind: partial(simulate, kind=kind) for kind in ("rank_hung", "rank_killed")}


@pytest.mark.parametrize("kind", JOBS)
def test_a_simulated_fault_hits_the_given_rank_once(jobs: Jobs, kind: str) -> None:
    job = jobs[kind].result()
    faults = [(event["rank"], event["cycle"]) for event in job.events("fault_injected")]
    assert faults == [(1, 0)]
    assert job.cycles() == [0, 1]
    assert job.verdict is not None


@pytest.mark.parametrize("kind", JOBS)
def test_a_simulated_fault_is_of_the_given_kind(jobs: Jobs, kind: str) -> None:
    job = jobs[kind].result()
    assert [event["kind"] for event in job.events("fault_injected")] == [kind]
    hung = [event["hung"] for event in job.events("last_life", rank=1)]
    assert hung == (["step"] if kind == "rank_hung" else [None])
