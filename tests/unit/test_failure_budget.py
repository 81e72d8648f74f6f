"""How many failures a job may have: a newer committed checkpoint gives all of them back, and nothing else does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nemo_resiliency_plugins.contract import Reason
from tests.unit.test_retry_script import RUNNING, Batch, saying

BUDGET, CODE = 2, 5
PROGRESS = 'mkdir -p "$NRP"; echo 5 > "$NRP/progress-7"; '


@pytest.fixture
def batch(tmp_path: Path) -> Batch:
    return Batch(tmp_path)


def failing(*newest: int | None) -> str:
    """A step that always fails; ``newest``: the newest committed checkpoint when the first, second, ... has failed."""
    words = " ".join("none" if step is None else str(step) for step in newest)
    return (
        f'words=(unused {words}); newest="${{words[$(wc -l < "$STAND/rounds")]}}"; mkdir -p "$NRP"; '
        f'[ "$newest" = none ] || echo "$newest" > "$NRP/progress-7"; exit {CODE}'
    )


@pytest.mark.parametrize(
    "newest",
    [
        (None, None, None),
        (5, 5, 5, 5),
        (None, 5, 5, 5, 5),
        (None, None, 5, 5, 5, 5),
        (None, None, 5, 5, 5, 9, 9, 9, 9),
        (5, 3, 3, 3),
    ],
    ids=["none", "at first", "after one", "after two", "twice", "an older one"],
)
def test_failures_are_counted_afresh_after_a_newer_checkpoint(batch: Batch, newest: tuple[int | None, ...]) -> None:
    assert batch.run(failing(*newest), max_failures=BUDGET) == CODE
    assert batch.rounds == len(newest)
    assert batch.policy() | {"failures": BUDGET, "attempts": len(newest) - 1} == batch.policy()


def test_time_a_requeue_and_a_preemption_give_no_failure_back(batch: Batch) -> None:
    batch.nodes("down")
    failures = []
    preempted = saying(Reason.PREEMPTED, restart_count=1)
    for restart_count, step in enumerate([f"exit {CODE}", preempted, f"exit {CODE}", f"exit {CODE}"]):
        code = batch.run(step, restart_count, max_failures=BUDGET)
        failures.append(batch.policy()["failures"])
        for path in batch.nrp.iterdir():
            os.utime(path, (0, 0))
    assert (failures, code) == ([1, 1, 2, 2], CODE)
    assert batch.calls == ["requeue 7"] * 3


@pytest.mark.parametrize(
    ("step", "job"),
    [
        (PROGRESS + saying(Reason.PREEMPTED, restart_count=1), {}),
        (PROGRESS + "exit 0", {"PreemptTime=None": "PreemptTime=2026-01-01T00:00:00"}),
        (PROGRESS + f"exit {CODE}", {"JobState=RUNNING Reason=None": "JobState=COMPLETING Reason=TimeLimit"}),
        (PROGRESS + "kill -9 $PPID", {}),
    ],
    ids=["preempted", "saved by itself", "time limit", "batch host lost"],
)
def test_a_newer_checkpoint_counts_however_its_attempt_has_ended(batch: Batch, step: str, job: dict[str, str]) -> None:
    batch.nodes("down")
    batch.run(f"exit {CODE}", 0, max_failures=BUDGET)
    for old, new in job.items():
        batch.job(RUNNING.replace(old, new))
    batch.run(step, 1, max_failures=BUDGET)
    batch.job(RUNNING)
    batch.run(f"exit {CODE}", 2, max_failures=BUDGET)
    assert batch.policy()["failures"] == 1, "the failure before the checkpoint is forgotten"
