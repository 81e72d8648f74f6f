"""NeMo-Run's status of a job that Slurm is bringing back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from nemo_run.run.torchx_backend.schedulers.slurm import SlurmTunnelScheduler
from torchx.schedulers.api import DescribeAppResponse
from torchx.specs import AppState

from nemo_resiliency_plugins.compat import nemo_run


@pytest.fixture
def status(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Asks for the status of job 7, given what NeMo-Run makes of ``sacct`` and what ``squeue`` prints."""

    def ask(state: AppState, queue: str) -> AppState:
        monkeypatch.setattr(
            SlurmTunnelScheduler, "describe", lambda self, app_id: DescribeAppResponse(app_id=app_id, state=state)
        )
        nemo_run.mend_status()
        nemo_run.mend_status()
        tunnel = SimpleNamespace(
            run=lambda command, **_: SimpleNamespace(stdout=queue if "--jobs=7" in command else "")
        )
        told: AppState = SlurmTunnelScheduler.describe(SimpleNamespace(tunnel=tunnel), "7").state
        return told

    return ask


@pytest.mark.parametrize("queue", ["PENDING\n", "COMPLETING\n", "RUNNING\n", "REQUEUED\n"])
def test_a_job_that_is_still_queued_has_not_failed(status: Any, queue: str) -> None:
    assert status(AppState.FAILED, queue) is AppState.PENDING


@pytest.mark.parametrize("queue", ["", "FAILED\n", "PREEMPTED\n", "TIMEOUT\n"])
def test_a_job_that_has_failed_has_failed(status: Any, queue: str) -> None:
    assert status(AppState.FAILED, queue) is AppState.FAILED


@pytest.mark.parametrize("state", [AppState.SUCCEEDED, AppState.CANCELLED, AppState.RUNNING])
def test_other_states_stay(status: Any, state: AppState) -> None:
    assert status(state, "PENDING\n") is state


def test_an_untried_version_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.99.0")
    monkeypatch.setattr(SlurmTunnelScheduler, "describe", print)
    nemo_run.mend_status()
    assert SlurmTunnelScheduler.describe is print
