"""Trainers of other libraries with the one callback, each in one rank that is told to leave."""

from __future__ import annotations

from functools import partial

import pytest

from tests.integrations import SCRIPTS, check_preempted, preempted, train
from tests.runtime.conftest import Jobs

AT_ONCE = 4
CASES = {"undisturbed": train, "preempted": preempted}
JOBS = {
    f"{library} {name}": partial(case, library=library, ranks=1) for library in SCRIPTS for name, case in CASES.items()
}


@pytest.mark.parametrize("library", SCRIPTS)
def test_a_preempted_training_goes_on_to_the_same_weights(jobs: Jobs, library: str) -> None:
    check_preempted(jobs[f"{library} preempted"].result(), jobs[f"{library} undisturbed"].result())
