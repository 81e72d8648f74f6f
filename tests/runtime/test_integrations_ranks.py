"""Trainers of other libraries with the one callback, on two ranks: a kill, a hang, a notice."""

from __future__ import annotations

from functools import partial

import pytest

from nemo_resiliency_plugins.contract import Reason
from tests.integrations import SCRIPTS, check_preempted, preempted, train
from tests.runtime.conftest import Jobs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
BY_LIBRARY = pytest.mark.parametrize("library", SCRIPTS)

AT_ONCE = 2
CASES = {
    "undisturbed": train,
    "faults": partial(train, faults="kill@1:10,hang@0:14", restarts=2),
    "preempted": preempted,
    "slow rank": partial(train, stragglers=True),
}
JOBS = {
    f"{library} {name}": partial(case, library=library, ranks=2) for library in SCRIPTS for name, case in CASES.items()
}


@BY_LIBRARY
def test_a_kill_and_a_hang_cost_no_bit(jobs: Jobs, library: str) -> None:
    job, undisturbed = jobs[f"{library} faults"].result(), jobs[f"{library} undisturbed"].result()
    assert {event["kind"] for event in job.events("fault_injected")} == {"kill", "hang"}
    assert job.cycles() == [0, 1, 2]
    assert [event["hung"] for event in job.events("last_life", rank=0) if event["hung"]] == ["step"]
    assert [event["step"] for event in job.events("resumed", rank=0)] == [None, 8, 12]
    assert job.result() == undisturbed.result()


@BY_LIBRARY
def test_all_ranks_stop_after_one_step_and_go_on_there(jobs: Jobs, library: str) -> None:
    check_preempted(jobs[f"{library} preempted"].result(), jobs[f"{library} undisturbed"].result())


@BY_LIBRARY
def test_the_end_is_a_finished_verdict(jobs: Jobs, library: str) -> None:
    job = jobs[f"{library} undisturbed"].result()
    assert job.verdict is not None
    assert (job.verdict.reason, job.verdict.step) == (Reason.FINISHED, 18)
    assert [event["step"] for event in job.events("checkpoint", rank=0)] == [4, 8, 12, 16, 18]


@BY_LIBRARY
def test_stragglers_are_measured(jobs: Jobs, library: str) -> None:
    [report] = jobs[f"{library} slow rank"].result().events("straggler_report", rank=0)
    assert set(report["scores"]) >= {"host_relative"}
