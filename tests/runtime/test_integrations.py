"""Trainers of other libraries with the one callback, each in one rank that is killed on its way."""

from __future__ import annotations

from functools import partial

import pytest

from nemo_resiliency_plugins.contract import Reason
from tests.integrations import SCRIPTS, train, train_unwatched
from tests.runtime.conftest import Jobs

AT_ONCE = 4
CASES = {"undisturbed": train_unwatched, "kill": partial(train, ranks=1, faults="kill@0:10", restarts=1)}
JOBS = {f"{library} {name}": partial(case, library=library) for library in SCRIPTS for name, case in CASES.items()}


@pytest.mark.parametrize("library", SCRIPTS)
def test_a_killed_training_goes_on_to_the_same_weights(jobs: Jobs, library: str) -> None:
    job = jobs[f"{library} kill"].result()
    assert [event["step"] for event in job.events("resumed")] == [None, 8]
    assert job.verdict is not None
    assert job.verdict.reason is Reason.FINISHED
    assert job.result() == jobs[f"{library} undisturbed"].result().result()
