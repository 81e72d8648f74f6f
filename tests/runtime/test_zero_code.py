"""A training script without a line of ours, started through the stub by a real launcher."""

from __future__ import annotations

from functools import partial

from nemo_resiliency_plugins.contract import Reason
from tests.harness import Timeouts, run
from tests.runtime.conftest import Jobs

ZERO_CODE = {"NRP_FAULT_TOLERANCE__ZERO_CODE": "true", "NRP_FAULT_TOLERANCE__WARMUP_STEPS": "2"}
SHORT = Timeouts(step=3.0)


def faulty(script: str) -> dict[str, str]:
    return {**ZERO_CODE, "NRP_FAULT_TOLERANCE__FAULT_SCRIPT": script}


train = partial(run, script="unchanged.py", ranks=1, timeouts=SHORT, env=ZERO_CODE)
JOBS = {
    "undisturbed": train,
    "kill": partial(train, restarts=1, env=faulty("kill@0:7")),
}


def test_a_kill_is_survived_by_the_script_s_own_checkpoints(jobs: Jobs) -> None:
    job = jobs["kill"].result()
    assert [event["kind"] for event in job.events("fault_injected")] == ["kill"]
    assert job.cycles() == [0, 1]
    assert job.result() == jobs["undisturbed"].result().result()


def test_a_normal_end_is_a_finished_verdict(jobs: Jobs) -> None:
    job = jobs["undisturbed"].result()
    assert job.verdict is not None
    assert (job.verdict.reason, job.verdict.step) == (Reason.FINISHED, 20)
    assert not job.events("session_started")


def test_what_cannot_be_done_is_said_once(jobs: Jobs) -> None:
    for job in jobs.values():
        assert job.result().log.count("The script's state is neither saved nor restored") == 1
