"""Suspect results under a launcher that starts its ranks again on the same machine."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from tests.harness import ended_afterwards, start


@pytest.mark.slow
def test_restarts_on_the_same_device_are_the_second_evidence_and_end(tmp_path: Path) -> None:
    env = {"NRP_RERUN_STATE_MACHINE__RERUN_MODE": "validate_results"}
    job = start(tmp_path, "validated.py", "--nan-on", platform.node(), ranks=2, restarts=2, env=env)
    with ended_afterwards(job):
        assert job.wait() != 0
    outcomes = [(case["cycle"], case["outcome"]) for case in job.events("suspect_result", rank=0)]
    assert outcomes == [(0, "elsewhere"), (1, "failed"), (2, "failed")]
    assert "it came again after a restart, but on the same device" in job.log
    assert [event["step"] for event in job.events("resumed", rank=0)] == [None, 6, 6]
