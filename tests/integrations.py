"""Trainings with the callbacks of ``integrations``: what the tests of them run."""

from __future__ import annotations

import sys
from pathlib import Path

from nemo_resiliency_plugins.contract import Reason
from tests.harness import ENABLED, LAUNCH, Job, Timeouts, ended_afterwards, run, spawn
from tests.harness import SCRIPTS as HOME

SCRIPTS = {"lightning": "lightning_trainer.py", "huggingface": "huggingface_trainer.py"}
WARM = {**ENABLED, "NRP_FAULT_TOLERANCE__WARMUP_STEPS": "2", "NRP_PREEMPTION__EXIT_SIGNAL_HANDLER": "true"}
SHORT = Timeouts(step=3.0)
LIMIT_S = 150.0
NOTICE_AT = 4


def train(
    root: Path,
    library: str,
    *arguments: str,
    ranks: int,
    faults: str = "",
    restarts: int = 0,
    stragglers: bool = False,
) -> Job:
    watched = {"NRP_FAULT_TOLERANCE__FAULT_SCRIPT": faults, "NRP_STRAGGLER__ENABLED": str(stragglers).lower()}
    env = {**WARM, **watched}
    options = {"ranks": ranks, "restarts": restarts, "timeouts": SHORT, "env": env}
    return run(root, SCRIPTS[library], arguments, deadline_s=LIMIT_S, **options)


def train_unwatched(root: Path, library: str) -> Job:
    """One rank without a launcher."""
    root.mkdir(parents=True, exist_ok=True)
    job = spawn(root, [sys.executable, *LAUNCH, str(HOME / SCRIPTS[library])], {})
    with ended_afterwards(job):
        return job.succeed(LIMIT_S)


def preempted(root: Path, library: str, ranks: int) -> Job:
    """The last rank is told to leave; the next start comes to the end."""
    train(root, library, "--signal-at", str(NOTICE_AT), ranks=ranks)
    return train(root, library, ranks=ranks)


def check_preempted(job: Job, undisturbed: Job) -> None:
    """All ranks have stopped after the step of the notice, and have gone on there."""
    assert {event["step"] for event in job.events("preempted")} == {NOTICE_AT + 1}
    assert [event["step"] for event in job.events("resumed", rank=0)] == [None, NOTICE_AT + 1]
    assert [text for _, text in job.said()] == ["stopped: preempted", "stopped: finished"]
    assert job.result() == undisturbed.result()
    assert job.verdict is not None
    assert job.verdict.reason is Reason.FINISHED
