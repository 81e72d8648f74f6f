"""A session of one rank that gets signals; the ranks of a job are in tests/runtime."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from nemo_resiliency_plugins import runtime
from nemo_resiliency_plugins.contract import Attempt, Reason, Verdict, read_events
from nemo_resiliency_plugins.errors import CheckpointError, NotWorkingError
from tests.harness import wait_for

CONFIG = runtime.PreemptionConfig(exit_signal_handler=True, exit_signal="USR1")


@dataclasses.dataclass
class Training:
    """Steps that only count, in a format of their own."""

    nrp: Path
    saved: list[int] = dataclasses.field(default_factory=list)
    ran: list[int] = dataclasses.field(default_factory=list)

    def save(self, step: int) -> None:
        self.saved.append(step)

    def run(self, steps: int, *, every: int = 0, at: dict[int, Callable[[], object]] | None = None) -> runtime.Session:
        with runtime.session(CONFIG) as session:
            latest = self.saved[-1] if self.saved else None
            start = session.attach(every=every, save=self.save, load=lambda step: None, latest=lambda: latest)
            for step in session.steps(start, steps):
                self.ran.append(step)
                (at or {}).get(step, bool)()
        return session

    def events(self, name: str) -> list[dict[str, Any]]:
        return [event for event in read_events(self.nrp) if event["event"] == name]

    def notice(self) -> None:
        """Signal this process, and wait until its listener has read it."""
        os.kill(os.getpid(), signal.SIGUSR1)
        wait_for(lambda: self.events("preemption_notice"), deadline_s=5)

    @property
    def verdict(self) -> Verdict | None:
        return Verdict.read(self.nrp, Attempt())


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Training:
    monkeypatch.setenv("NRP_DIR", str(tmp_path / "nrp"))
    return Training(tmp_path / "nrp")


@pytest.fixture
def calls() -> Iterator[list[int]]:
    """What a handler of the user's, installed before the session, is called with."""
    called: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGTERM)}
    signal.signal(signal.SIGUSR1, lambda number, _: called.append(number))
    yield called
    for number, handler in before.items():
        signal.signal(number, handler)


def test_the_step_is_finished_and_saved_and_the_verdict_says_why(training: Training) -> None:
    session = training.run(10, at={3: training.notice})
    assert training.ran == [0, 1, 2, 3]
    assert training.saved == [4]
    assert session.stop_reason is Reason.PREEMPTED
    assert training.verdict == Verdict(Reason.PREEMPTED, 0, 4, 0, os.uname().nodename)


def test_the_next_start_goes_on_after_the_saved_step(training: Training) -> None:
    training.run(6, at={3: training.notice})
    training.run(6)
    assert training.ran == [0, 1, 2, 3, 4, 5]
    assert training.verdict is not None
    assert training.verdict.reason is Reason.FINISHED


def test_what_was_just_saved_is_not_saved_again(training: Training) -> None:
    training.run(10, every=2, at={3: training.notice})
    assert training.saved == [2, 4]


def test_a_notice_during_a_save_lets_it_end_and_saves_no_second_time(training: Training) -> None:
    training.save = lambda step: (training.notice(), training.saved.append(step))  # type: ignore[method-assign,assign]
    training.run(10, every=2)
    assert training.saved == [2]


def test_before_the_first_step_there_is_nothing_to_save(training: Training) -> None:
    with runtime.session(CONFIG) as session:
        start = session.attach(save=training.save, load=training.save, latest=lambda: None)
        training.notice()
        assert list(session.steps(start, 4)) == []
    assert training.saved == []
    assert training.verdict is not None
    assert (training.verdict.reason, training.verdict.step) == (Reason.PREEMPTED, 0)


def test_a_notice_in_the_last_step_comes_too_late_to_matter(training: Training) -> None:
    session = training.run(4, at={3: training.notice})
    assert session.stop_reason is Reason.FINISHED
    assert training.verdict is not None
    assert training.verdict.reason is Reason.FINISHED


def test_finish_after_a_preemption_changes_nothing(training: Training) -> None:
    with runtime.session(CONFIG) as session:
        start = session.attach(save=training.save, load=training.save, latest=lambda: None)
        for _ in session.steps(start, 4):
            training.notice()
        session.finish()
    assert session.stop_reason is Reason.PREEMPTED


def test_an_evaluation_loop_is_told_to_stop(training: Training) -> None:
    rounds: list[int] = []

    def evaluate() -> None:
        for batch in range(100):
            if session.should_stop():
                return
            rounds.append(batch)
            if batch == 2:
                training.notice()

    with runtime.session(CONFIG) as session:
        start = session.attach(save=training.save, load=training.save, latest=lambda: None)
        for _ in session.steps(start, 4):
            evaluate()
    assert rounds == [0, 1, 2]
    assert training.saved == [1]


def test_a_script_that_leaves_between_two_loops_because_it_was_told_is_preempted(training: Training) -> None:
    with runtime.session(CONFIG) as session:
        start = session.attach(save=training.save, load=training.save, latest=lambda: None)
        assert list(session.steps(start, 2)) == [0, 1]
        training.notice()
        assert session.should_stop()
    assert session.stop_reason is Reason.PREEMPTED
    assert training.saved == [2]


def test_a_failed_save_is_told_apart_and_raised(training: Training) -> None:
    def fail(step: int) -> None:
        raise CheckpointError("the disk is full")

    training.save = fail  # type: ignore[method-assign]
    with pytest.raises(CheckpointError, match="disk is full"):
        training.run(4, at={1: training.notice})
    assert training.verdict is not None
    assert (training.verdict.reason, training.verdict.code) == (Reason.PREEMPTED_UNSAVED, 1)


def test_several_signals_are_one_notice(training: Training, calls: list[int]) -> None:
    def twice() -> None:
        training.notice()
        os.kill(os.getpid(), signal.SIGUSR1)
        wait_for(lambda: len(calls) == 2, deadline_s=5)

    training.run(4, at={1: twice})
    assert [event["signal"] for event in training.events("preemption_notice")] == ["SIGUSR1"]
    assert calls == [signal.SIGUSR1] * 2


def test_the_time_from_the_notice_and_of_the_save_are_noted(training: Training) -> None:
    training.run(4, at={1: training.notice})
    [event] = training.events("preempted")
    assert event["step"] == 2
    assert 0 <= event["save_s"] <= event["since_notice_s"] < 5


@pytest.mark.parametrize("fails", [False, True], ids=["normal end", "error"])
def test_the_users_handler_is_called_during_the_session_and_back_after_it(
    training: Training, calls: list[int], fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    users = signal.getsignal(signal.SIGUSR1)

    def end() -> None:
        training.notice()
        if fails:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) if fails else contextlib.nullcontext():
        training.run(4, at={1: end})
    assert calls == [signal.SIGUSR1]
    assert signal.getsignal(signal.SIGUSR1) is users
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert signal.set_wakeup_fd(-1) == -1
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("nrp-")]
    os.kill(os.getpid(), signal.SIGUSR1)
    assert calls == [signal.SIGUSR1] * 2
    [told] = [record.message for record in caplog.records if "is called at a notice as well" in record.message]
    assert "calls.<locals>.<lambda>" in told


def test_pythons_own_handler_of_an_interrupt_does_not_cut_the_step(training: Training) -> None:
    config = runtime.PreemptionConfig(exit_signal_handler=True, exit_signal="INT")
    with runtime.session(config) as session:
        start = session.attach(save=training.save, load=training.save, latest=lambda: None)
        for step in session.steps(start, 4):
            os.kill(os.getpid(), signal.SIGINT)
            wait_for(lambda: training.events("preemption_notice"), deadline_s=5)
            training.ran.append(step)
    assert training.ran == [0]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_signals_that_are_none_of_ours_keep_what_they_had(training: Training) -> None:
    before = signal.getsignal(signal.SIGUSR2)
    training.run(2, at={0: lambda: training.ran.append(signal.getsignal(signal.SIGUSR2) is before)})
    assert training.ran[:2] == [0, True]


def test_somebody_elses_wakeup_descriptor_gets_the_bytes_and_is_put_back(training: Training) -> None:
    reader, writer = socket.socketpair()
    with reader, writer:
        writer.setblocking(False)
        signal.set_wakeup_fd(writer.fileno())
        training.run(4, at={1: training.notice})
        assert signal.set_wakeup_fd(-1) == writer.fileno()
        assert reader.recv(8) == bytes([signal.SIGUSR1])


def trainers_handler(number: int, frame: FrameType | None) -> None:
    """Stands for the Slurm handler of a trainer."""


def test_a_handler_installed_after_ours_is_named_once_and_the_signal_still_noticed(
    training: Training, calls: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    def replace() -> None:
        signal.signal(signal.SIGUSR1, trainers_handler)

    session = training.run(8, every=1, at={0: replace, 3: training.notice})
    assert session.stop_reason is Reason.PREEMPTED
    [told] = [record.message for record in caplog.records if "has replaced" in record.message]
    assert "test_preemption.trainers_handler has replaced the session's handler of SIGUSR1" in told
    assert signal.getsignal(signal.SIGUSR1) is trainers_handler
    assert [event["signal"] for event in training.events("handler_replaced")] == ["SIGUSR1"]


def test_a_signal_that_is_ignored_again_is_said_to_be_missed_and_strictly_an_error(
    training: Training, calls: list[int], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ignore() -> None:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)

    training.run(4, every=1, at={0: ignore})
    assert caplog.text.count("its signal is not noticed: something has replaced the session's handler of SIGUSR1") == 1
    assert [event["feature"] for event in training.events("not_working")] == ["preemption"]
    monkeypatch.setenv("NRP_STRICT", "true")
    with pytest.raises(NotWorkingError, match="Install other handlers before the session"):
        training.run(8, every=1, at={4: ignore})


def test_outside_the_main_thread_it_says_that_nothing_is_noticed(
    training: Training, caplog: pytest.LogCaptureFixture
) -> None:
    errors: list[Exception] = []

    def strictly() -> None:
        try:
            with runtime.session(CONFIG, strict=True):
                pass
        except NotWorkingError as error:
            errors.append(error)

    for target in (lambda: training.run(2), strictly):
        thread = threading.Thread(target=target)
        thread.start()
        thread.join()
    assert training.ran == [0, 1]
    assert caplog.text.count("the session is not opened in the main thread") == 1
    assert len(errors) == 1


def test_a_forked_childs_signal_is_its_own(training: Training, calls: list[int]) -> None:
    def fork() -> None:
        child = os.fork()
        if child == 0:
            signal.pause()
            os._exit(0)  # not reached
        os.kill(child, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM

    session = training.run(4, at={1: fork})
    assert session.stop_reason is Reason.FINISHED
    assert not training.events("preemption_notice")


def test_without_being_asked_for_signals_are_left_alone(training: Training) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with runtime.session():
        assert signal.getsignal(signal.SIGTERM) is before
        assert signal.set_wakeup_fd(-1) == -1


def test_before_anything_is_attached_the_scripts_own_handler_does_what_it_has_to(training: Training) -> None:
    told = []
    former = signal.signal(signal.SIGUSR1, lambda *_: told.append("own"))
    try:
        with runtime.session(CONFIG):
            training.notice()
    finally:
        signal.signal(signal.SIGUSR1, former)
    assert told == ["own"]
    assert training.verdict is None


def test_a_notice_from_before_is_heeded_once_something_is_attached(training: Training) -> None:
    former = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        with runtime.session(CONFIG) as session:
            training.notice()
            start = session.attach(save=training.save, load=lambda step: None, latest=lambda: None)
            training.ran += session.steps(start, 5)
    finally:
        signal.signal(signal.SIGUSR1, former)
    assert training.ran == []
    assert session.stop_reason is Reason.PREEMPTED


def test_an_event_loop_that_takes_the_wakeup_descriptor_does_not_take_the_notice(training: Training) -> None:
    async def listens() -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, print)

    session = training.run(10, at={2: lambda: asyncio.run(listens()), 4: training.notice})
    assert training.ran == [0, 1, 2, 3, 4]
    assert session.stop_reason is Reason.PREEMPTED
