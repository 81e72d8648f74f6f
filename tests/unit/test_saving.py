"""Saves in a thread: the values of their own step, one at a time, and what a failed one means."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from nemo_resiliency_plugins.contract import Attempt, read_events
from nemo_resiliency_plugins.errors import CheckpointError
from nemo_resiliency_plugins.runtime.agreement import Ranks
from nemo_resiliency_plugins.runtime.checkpoint import dcp
from nemo_resiliency_plugins.runtime.checkpoint.reporting import GLOBAL, Reporter, Save
from nemo_resiliency_plugins.runtime.checkpoint.saving import BackgroundSaver, Write
from nemo_resiliency_plugins.runtime.checkpoint.staging import Staging
from nemo_resiliency_plugins.runtime.checkpoint.state import Content
from nemo_resiliency_plugins.runtime.events import EventLog
from tests.harness import wait_for
from tests.unit.conftest import open_checkpointer

TIMEOUT_S = 0.2


def content(value: float = 0.0) -> Content:
    return Content({"tensor": torch.full((3,), value)}, {"count": value})


def failing(_: Content, __: Ranks) -> bool:
    raise CheckpointError("no space")


def dying(_: Content, __: Ranks) -> bool:
    raise AssertionError("a bug")


def fine(_: Content, __: Ranks) -> bool:
    return True


class Gate:
    """A write that goes on when it is let."""

    def __init__(self) -> None:
        self.reached, self.open = threading.Event(), threading.Event()
        self.written: list[Content] = []

    def __call__(self, given: Content, _: Ranks) -> bool:
        self.reached.set()
        self.open.wait()
        self.written.append(Content({"tensor": given.tensors["tensor"].clone()}, given.host))
        return True


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open.set()


class Harness:
    def __init__(self, root: Path, *, tolerated: int, timeout_s: float) -> None:
        self.root = root
        reporter = Reporter(0, EventLog(root, Attempt(), 0), lambda step, seconds: None)
        self.saver = BackgroundSaver(
            Ranks(), reporter, tolerated=tolerated, timeout_s=timeout_s, stagings={GLOBAL: Staging()}
        )

    def run(self, step: int, write: Write, gather: Callable[[], Content] = content) -> None:
        self.saver.run(Save(step, GLOBAL, None), gather, write)

    @property
    def events(self) -> list[tuple[str, int]]:
        return [(event["event"], event["step"]) for event in read_events(self.root)]


@pytest.fixture
def harness(tmp_path: Path) -> Callable[..., Harness]:
    def make(*, tolerated: int = 0, timeout_s: float = 10.0) -> Harness:
        return Harness(tmp_path, tolerated=tolerated, timeout_s=timeout_s)

    return make


def test_a_save_holds_the_values_of_its_own_step(harness: Callable[..., Harness], gate: Gate) -> None:
    target, mine = harness(), content(1.0)
    target.run(1, gate, lambda: mine)
    mine.tensors["tensor"].fill_(2.0)
    mine.host["count"] = 2.0
    mine.tensors["tensor"] = torch.zeros(3)
    gate.open.set()
    target.saver.drain()
    [written] = gate.written
    assert written.tensors["tensor"].tolist() == [1.0, 1.0, 1.0]
    assert written.host == {"count": 1.0}


def test_scheduled_is_not_durable(harness: Callable[..., Harness], gate: Gate) -> None:
    target = harness()
    target.run(1, gate)
    assert gate.reached.wait(10)
    assert target.events == [("checkpoint_scheduled", 1)]
    gate.open.set()
    target.saver.drain()
    assert target.events == [("checkpoint_scheduled", 1), ("checkpoint", 1)]


def test_a_second_save_waits_for_the_first(harness: Callable[..., Harness], gate: Gate) -> None:
    target = harness()
    target.run(1, gate, lambda: content(1.0))
    second = threading.Thread(target=target.run, args=(2, gate, lambda: content(2.0)))
    second.start()
    gate.open.set()
    second.join()
    target.saver.drain()
    assert [written.host["count"] for written in gate.written] == [1.0, 2.0]
    assert [step for name, step in target.events if name == "checkpoint"] == [1, 2]


def test_an_error_comes_at_the_next_boundary(harness: Callable[..., Harness]) -> None:
    target = harness()
    target.saver.boundary()
    target.run(1, failing)
    wait_for(lambda: ("checkpoint_failed", 1) in target.events)
    wait_for(lambda: target.saver._end is not None)
    with pytest.raises(CheckpointError, match="no space"):
        target.saver.boundary()
    with pytest.raises(CheckpointError, match="no space"):
        target.run(2, fine)


def test_so_many_failures_in_a_row_are_tolerated(harness: Callable[..., Harness]) -> None:
    target = harness(tolerated=2)
    for step, write in enumerate([failing, failing, fine, failing, failing]):
        target.run(step, write)
        target.saver.boundary()
    target.run(9, fine)
    target.saver.drain()
    target.run(10, failing)
    with pytest.raises(CheckpointError, match="no space"):
        target.saver.drain()


def test_one_more_is_an_error(harness: Callable[..., Harness]) -> None:
    target = harness(tolerated=2)
    for step in range(3):
        target.run(step, failing)
    with pytest.raises(CheckpointError, match="no space"):
        target.run(3, fine)


def test_a_deaf_writer_is_an_error_and_is_waited_for_once(harness: Callable[..., Harness], gate: Gate) -> None:
    target = harness(timeout_s=TIMEOUT_S)
    target.run(1, gate)
    with pytest.raises(CheckpointError, match=r"writer of the checkpoint of step 1 has not answered for 0\.2 s"):
        target.saver.drain()
    with pytest.raises(CheckpointError, match="has not answered"):
        target.run(2, fine)
    target.saver.close()


def test_closing_says_what_stays_unmarked(
    harness: Callable[..., Harness], gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    target = harness(timeout_s=TIMEOUT_S)
    target.run(1, gate)
    target.saver.close()
    assert "step 1 has not answered for 0.2 s; it stays without its marker" in caplog.text


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_writer_that_dies_is_an_error(harness: Callable[..., Harness]) -> None:
    target = harness(tolerated=9)
    target.run(1, dying)
    with pytest.raises(CheckpointError, match="has died"):
        target.saver.drain()


@pytest.mark.parametrize("handler", [lambda number, frame: None, signal.SIG_DFL], ids=["handled", "deadly"])
def test_what_a_writer_starts_is_spared_the_signals_that_its_rank_survives(
    harness: Callable[..., Harness], handler: Any
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def starting(_: Content, __: Ranks) -> bool:
        started.append(subprocess.Popen(["cat"], stdin=subprocess.PIPE))
        return True

    target, former = harness(), signal.signal(signal.SIGTERM, handler)
    try:
        target.run(1, starting)
        target.saver.drain()
    finally:
        signal.signal(signal.SIGTERM, former)
    with started[0] as process:  # at its end, with the end of its input, unless the signal ends it before
        process.terminate()
    assert process.returncode == (0 if callable(handler) else -signal.SIGTERM)


def test_the_copy_follows_the_form_of_the_state() -> None:
    staging = Staging()
    first = staging.copy(content(1.0)).tensors["tensor"]
    again = staging.copy(content(2.0)).tensors["tensor"]
    assert again is first
    other = staging.copy(Content({"tensor": torch.ones(5), "more": torch.ones(1)}, {}))
    assert {name: len(value) for name, value in other.tensors.items()} == {"tensor": 5, "more": 1}
    assert list(staging.copy(content()).tensors) == ["tensor"]


def test_an_async_checkpoint_is_resumed_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, write = Gate(), dcp.write
    model = nn.Linear(2, 2)
    saving = open_checkpointer(tmp_path, {"model": model}, async_save=True)
    before = [value.clone() for value in model.parameters()]

    def slow(path: Path, given: Content, ranks: Ranks) -> list[Path]:
        gate.open.wait()
        return write(path, given, ranks)

    monkeypatch.setattr(dcp, "write", slow)
    saving.save(3, None)
    nn.init.zeros_(model.weight)
    gate.open.set()
    saving.drain()
    again = nn.Linear(2, 2)
    assert open_checkpointer(tmp_path, {"model": again}).resume() == 3
    assert all(torch.equal(*pair) for pair in zip(before, again.parameters(), strict=True))
