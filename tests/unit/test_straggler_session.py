"""Straggler detection in a session of one rank: memory, restarts in a process, and a stop."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
import torch
from torch import nn
from torch.distributed import Work

from nemo_resiliency_plugins import runtime
from nemo_resiliency_plugins.contract import Attempt, Reason, Verdict, nowhere_path, read_events
from nemo_resiliency_plugins.errors import NotWorkingError

EVERYTHING_IS_SLOW = {"gpu_individual_perf_threshold": 1.0, "stop_if_detected": True, "report_time_interval": 0.01}


def config(**fields: object) -> runtime.NVRxStragglerDetectionConfig:
    return runtime.NVRxStragglerDetectionConfig(**{"enabled": True, "report_time_interval": 0.05, **fields})


def resident_mb() -> float:
    return float(psutil.Process().memory_info().rss) / 1e6


def forward_backward(model: nn.Module) -> None:
    model(torch.ones(1, 2)).sum().backward()


@pytest.mark.parametrize("steps", [30_000, pytest.param(200_000, marks=pytest.mark.slow)])
def test_many_steps_take_no_more_memory(steps: int, tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    seen = {}
    with runtime.session(config(enable_logging=False, report_time_interval=1000.0)) as session:
        session.attach({"model": model}, tmp_path)
        for step in session.steps(0, steps + 1):
            forward_backward(model)
            if step in (10_000, steps):
                seen[step] = resident_mb()
    assert seen[steps] - seen[10_000] < 1


def test_a_second_session_in_the_process_measures_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    model = nn.Linear(2, 2)
    wait = Work.wait
    for life in range(3):
        with runtime.session(config(report_time_interval=1000.0)) as session:
            start = session.attach({"model": model}, tmp_path)
            assert Work.wait is not wait
            for step in session.steps(start, start + 9):
                forward_backward(model)
                if life == 1 and step == start + 5:
                    session.stop()
        assert Work.wait is wait
    assert caplog.text.count("Host individual performance:\n") == 3
    assert not model._forward_hooks


def test_hooks_are_gone_after_an_error(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(ZeroDivisionError), runtime.session(config()) as session:
        session.attach({"model": model}, tmp_path)
        for step in session.steps(0, 5):
            1 // (step - 2)
    assert not model._forward_hooks


def test_a_stop_saves_and_leaves_and_a_later_run_finishes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NRP_DIR", str(tmp_path / "nrp"))
    model = nn.Linear(2, 2)
    with runtime.session(config(**EVERYTHING_IS_SLOW)) as session:
        session.attach({"model": model}, tmp_path / "checkpoints")
        for _ in session.steps(0, 100_000):
            forward_backward(model)
        assert session.should_stop()
    assert session.stop_reason is Reason.STRAGGLER
    verdict = Verdict.read(tmp_path / "nrp", Attempt())
    assert verdict is not None
    assert verdict.reason is Reason.STRAGGLER
    [stop] = [event for event in read_events(tmp_path / "nrp") if event["event"] == "straggler_stop"]
    with runtime.session() as session:
        assert session.attach({"model": model}, tmp_path / "checkpoints") == stop["step"] == verdict.step
        list(session.steps(verdict.step, verdict.step + 2))
    assert session.stop_reason is Reason.FINISHED


def test_a_job_that_has_nowhere_to_go_does_not_stop_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NRP_DIR", str(tmp_path / "nrp"))
    (tmp_path / "nrp").mkdir()
    nowhere_path(tmp_path / "nrp", Attempt()).touch()
    model = nn.Linear(2, 2)
    with runtime.session(config(**EVERYTHING_IS_SLOW)) as session:
        session.attach({"model": model}, tmp_path / "checkpoints")
        for _ in session.steps(0, 3000):
            forward_backward(model)
    assert session.stop_reason is Reason.FINISHED
    assert any(event["event"] == "straggler" for event in read_events(tmp_path / "nrp"))
    assert "stragglers are warnings only" in caplog.text


def test_what_the_last_report_finds_comes_too_late_for_a_stop(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    fields = {**EVERYTHING_IS_SLOW, "report_time_interval": 1000.0}
    with runtime.session(config(**fields)) as session:
        session.attach({"model": nn.Linear(2, 2)}, tmp_path)
        for epoch in range(3):
            list(session.steps(10 * epoch, 10 * epoch + 10))
            assert not session.should_stop()
            assert "straggler report" not in caplog.text
        session.finish()
        assert caplog.text.count("straggler report after 30 steps") == 1
    assert session.stop_reason is Reason.FINISHED


def test_nothing_to_measure_is_an_error_under_strict() -> None:
    with pytest.raises(NotWorkingError, match="attach"), runtime.session(config(), strict=True) as session:
        list(session.steps(0, 3))


def test_no_module_to_measure_is_a_warning_and_strictly_an_error(caplog: pytest.LogCaptureFixture) -> None:
    functions = {"save": print, "load": print, "latest": lambda: None}
    with runtime.session(config()) as session:
        session.attach(**functions)
        assert "nothing is measured: no module was attached, and there is no GPU" in caplog.text
    with pytest.raises(NotWorkingError, match="no module"), runtime.session(config(), strict=True) as session:
        session.attach(**functions)


def test_steps_in_no_report_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with runtime.session(config(report_time_interval=1000.0)) as session:
        session.attach({"model": nn.Linear(2, 2)}, tmp_path)
        for step in session.steps(0, 20):
            if step == 15:
                break
    assert "the last 15 steps are in no straggler report" in caplog.text


def test_loops_of_one_step_each_are_measured(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    model = nn.Linear(2, 2)
    with runtime.session(config(report_time_interval=1000.0)) as session:
        session.attach({"model": model}, tmp_path)
        for step in range(6):
            for _ in session.steps(step, step + 1):
                forward_backward(model)
    assert "Host individual performance:\n" in caplog.text


def test_no_score_to_calculate_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with runtime.session(config(calc_relative_gpu_perf=False, calc_individual_gpu_perf=False)) as session:
        session.attach({"model": nn.Linear(2, 2)}, tmp_path)
    assert "nothing is measured: both kinds of scores are off" in caplog.text
