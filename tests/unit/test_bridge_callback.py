"""The callback for Megatron-Bridge, driven by its own callback manager."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from nemo_resiliency_plugins import ConfigError, NotWorkingError
from nemo_resiliency_plugins.contract import Attempt, Reason, Verdict, notice_path, progress_path, read_events
from nemo_resiliency_plugins.integrations.megatron_bridge import TRACKER, ResiliencyCallback
from tests.versions import megatron

ATTEMPT = Attempt("7")
JOB = {"NRP_JOB_ID": "7", "RANK": "0", "WORLD_SIZE": "1"}


@pytest.fixture(params=megatron.VERSIONS)
def callbacks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module of Megatron-Bridge that knows the events."""
    monkeypatch.syspath_prepend(megatron.python_path(request.param))
    yield __import__("megatron.bridge.training.callbacks", fromlist=["*"])
    for name in [name for name in sys.modules if name.partition(".")[0] == "megatron"]:
        del sys.modules[name]


class Training:
    """What Megatron-Bridge's loop does with a callback."""

    def __init__(self, callbacks: ModuleType, root: Path, *, strict: bool = False, **train: Any) -> None:
        fields = {"exit_signal_handler": True, "exit_signal": 15, "exit_interval": None, "exit_duration_in_mins": None}
        self.save, self.nrp = root / "checkpoints", root / "nrp"
        self.save.mkdir(exist_ok=True)
        self.signals = [False, False]
        self.state = Namespace(
            cfg=Namespace(train=Namespace(**{**fields, **train}), checkpoint=Namespace(save=str(self.save))),
            train_state=Namespace(step=0),
            signal_handler=Namespace(signals_received=lambda: self.signals),
            rank_monitor_client=object(),
        )
        self.callbacks, self.callback = callbacks, ResiliencyCallback(strict=strict)
        self.manager = callbacks.normalize_callbacks([self.callback])

    def fire(self, event: str) -> None:
        if self.callbacks.should_fire(self.manager, event):
            context = self.callbacks.CallbackContext(state=self.state, model=[], user_state=self.manager.user_state)
            self.manager.fire(event, context)

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.fire("on_train_step_start")
            self.fire("on_train_step_end")
            self.state.train_state.step += 1

    def checkpointed(self, step: int) -> None:
        (self.save / TRACKER).write_text(str(step))

    def leaves(self, saved: bool = True) -> None:
        """The loop is left after three iterations, as by a signal."""
        with pytest.raises(SystemExit), self.callback:
            self.fire("on_train_start")
            self.steps(3)
            self.state.signal_handler.signals_received()
            if saved:
                self.checkpointed(3)
            sys.exit(0)

    @property
    def verdict(self) -> Reason | None:
        verdict = Verdict.read(self.nrp, ATTEMPT)
        return verdict.reason if verdict else None

    @property
    def progress(self) -> int | None:
        path = progress_path(self.nrp, ATTEMPT)
        return int(path.read_text()) if path.exists() else None

    def events(self, name: str) -> list[dict[str, Any]]:
        return [event for event in read_events(self.nrp) if event["event"] == name]


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name, value in {**JOB, "NRP_DIR": str(tmp_path / "nrp")}.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


@pytest.fixture
def training(callbacks: ModuleType, tmp_path: Path, env: pytest.MonkeyPatch) -> Training:
    return Training(callbacks, tmp_path)


def test_the_verdict_comes_when_all_is_saved_and_not_before(training: Training) -> None:
    with training.callback:
        training.fire("on_train_start")
        training.steps(4)
        training.fire("on_train_end")
        assert training.verdict is None
        training.checkpointed(4)
    assert training.verdict is Reason.FINISHED
    assert training.progress == 4
    assert [event["step"] for event in training.events("finished")] == [4]
    assert [event["step"] for event in training.events("first_step")] == [0]


def test_a_failure_after_the_last_iteration_leaves_no_verdict(training: Training) -> None:
    with pytest.raises(OSError, match="full"), training.callback:
        training.fire("on_train_start")
        training.fire("on_train_end")
        raise OSError("disk full")
    assert training.verdict is None
    assert training.events("session_failed")[0]["message"] == "disk full"


def test_the_tracker_is_progress_from_its_first_change_on(training: Training) -> None:
    training.checkpointed(8)
    training.state.train_state.step = 8
    with training.callback:
        training.fire("on_train_start")
        training.steps(1)
        assert training.progress is None
        for text in ("", "release"):
            (training.save / TRACKER).write_text(text)
            training.steps(1)
        assert training.progress is None
        training.checkpointed(11)
        training.steps(1)
        assert training.progress == 11
        training.fire("on_train_end")
    assert [event["step"] for event in training.events("checkpoint")] == [11]


@pytest.mark.parametrize(("saved", "reason"), [(True, Reason.PREEMPTED), (False, Reason.PREEMPTED_UNSAVED)])
def test_an_exit_on_a_signal_of_any_rank_is_a_preemption(training: Training, saved: bool, reason: Reason) -> None:
    training.signals[1] = True
    training.leaves(saved)
    assert training.verdict is reason


@pytest.mark.parametrize(("announced", "reason"), [(True, Reason.PREEMPTED), (False, None)])
def test_under_a_node_script_the_notice_decides(
    training: Training, env: pytest.MonkeyPatch, announced: bool, reason: Reason | None
) -> None:
    env.setenv("NRP_NOTICE", "launcher")
    if announced:
        training.nrp.mkdir()
        notice_path(training.nrp, ATTEMPT).touch()
    training.signals[0] = True
    training.leaves()
    assert training.verdict is reason


@pytest.mark.parametrize(
    ("train", "reason"),
    [
        ({"exit_interval": 3}, Reason.FINISHED),
        ({"exit_interval": 2}, None),
        ({"exit_duration_in_mins": 60}, Reason.PREEMPTED),
        ({}, None),
    ],
    ids=str,
)
def test_what_else_ends_the_loop_early(
    callbacks: ModuleType, tmp_path: Path, env: pytest.MonkeyPatch, train: dict[str, Any], reason: Reason | None
) -> None:
    training = Training(callbacks, tmp_path, **train)
    training.leaves()
    assert training.verdict is reason


def test_an_evaluation_alone_is_finished_when_it_returns(training: Training) -> None:
    with training.callback:
        training.fire("on_eval_start")
        training.fire("on_test_start")
    assert training.verdict is Reason.FINISHED


def test_a_program_that_exits_before_its_loop_is_not_finished(training: Training) -> None:
    with pytest.raises(SystemExit), training.callback:
        sys.exit(0)
    assert training.verdict is None


def test_the_loop_is_asked_for_signals_no_more_often_than_it_asks(training: Training) -> None:
    asked = []
    training.state.signal_handler.signals_received = lambda: asked.append(1) or [True]
    training.leaves()
    assert training.verdict is Reason.PREEMPTED
    assert len(asked) == 1


def test_it_must_be_entered(training: Training) -> None:
    with pytest.raises(ConfigError, match=r"with ResiliencyCallback\(\) as callback"):
        training.fire("on_train_start")


@pytest.mark.parametrize(
    ("variables", "train", "reason"),
    [
        ({"NRP_PREEMPTION__EXIT_SIGNAL_HANDLER": "true"}, {"exit_signal_handler": False}, "exit_signal_handler is off"),
        (
            {"NRP_PREEMPTION__EXIT_SIGNAL_HANDLER": "true", "NRP_PREEMPTION__EXIT_SIGNAL": "USR2"},
            {},
            "Slurm sends SIGUSR2, and train.exit_signal is SIGTERM",
        ),
        ({"NRP_FAULT_TOLERANCE__ENABLE_FT_PACKAGE": "true"}, {}, "ft.enable_ft_package is off"),
        ({}, {}, "checkpoint.save is None, no directory"),
    ],
    ids=str,
)
def test_what_was_asked_for_and_cannot_work_is_said(
    callbacks: ModuleType,
    tmp_path: Path,
    env: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    variables: dict[str, str],
    train: dict[str, Any],
    reason: str,
) -> None:
    for name, value in variables.items():
        env.setenv(name, value)
    for strict in (False, True):
        training = Training(callbacks, tmp_path, strict=strict, **train)
        training.state.rank_monitor_client = None
        if "directory" in reason:
            training.state.cfg.checkpoint.save = None
        with pytest.raises(NotWorkingError, match=reason) if strict else nullcontext(), training.callback:
            training.fire("on_train_start")
            training.fire("on_train_end")
    assert reason in caplog.text


def test_a_scripted_fault_is_injected(training: Training, env: pytest.MonkeyPatch) -> None:
    env.setenv("NRP_FAULT_TOLERANCE__FAULT_SCRIPT", "exception@0:2")
    with pytest.raises(RuntimeError, match="injected at step 2"), training.callback:
        training.fire("on_train_start")
        training.steps(4)
    assert training.state.train_state.step == 2
