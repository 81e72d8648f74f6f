"""What a session says where a preemption, or any other restart, would lose work."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from nemo_resiliency_plugins import runtime
from nemo_resiliency_plugins.contract import Attempt, Reason, Verdict, read_events
from tests.harness import wait_for


@pytest.fixture
def nrp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NRP_DIR", str(tmp_path))
    return tmp_path


def train(*, grace_s: float | None = None, saves: bool = True, notice_at: int | None = None, nrp: Path) -> None:
    config = runtime.PreemptionConfig(exit_signal_handler=True, grace_period_s=grace_s)
    with runtime.session(config) as session:
        start = 0
        if saves:
            start = session.attach(save=lambda step: None, load=lambda step: None, latest=lambda: None, every=1)
        for step in session.steps(start, 3):
            if step == notice_at:
                os.kill(os.getpid(), signal.SIGTERM)
                wait_for(lambda: [event for event in read_events(nrp) if event["event"] == "preemption_notice"])


def test_a_save_that_takes_longer_than_the_grace_is_warned_about_once(
    nrp: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(grace_s=1e-9, nrp=nrp)
    assert caplog.text.count("a preemption leaves 1e-09 s: raise preempt_time") == 1


def test_a_save_within_the_grace_is_not(nrp: Path, caplog: pytest.LogCaptureFixture) -> None:
    train(grace_s=60, nrp=nrp)
    assert "a preemption leaves" not in caplog.text


def test_steps_that_nothing_saves_are_no_progress(nrp: Path) -> None:
    train(saves=False, notice_at=1, nrp=nrp)
    verdict = Verdict.read(nrp, Attempt())
    assert verdict is not None
    assert (verdict.reason, verdict.step) == (Reason.PREEMPTED_UNSAVED, 2)


@pytest.mark.parametrize("name", ["SLURM_RESTART_COUNT", "NRP_ROUND", "TORCHELASTIC_RESTART_COUNT"])
def test_a_repeated_start_that_resumes_nothing_says_so(
    nrp: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "1")
    train(saves=False, nrp=nrp)
    assert caplog.text.count("started before, and nothing is resumed: attach() was not called") == 1


def test_a_first_start_does_not(nrp: Path, caplog: pytest.LogCaptureFixture) -> None:
    train(saves=False, nrp=nrp)
    assert "nothing is resumed" not in caplog.text
