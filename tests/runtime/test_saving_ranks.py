"""Saves of several ranks: slow, failing, cut; what is left is always whole, and the newest that was called durable."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nemo_resiliency_plugins.contract import Attempt, progress_path
from nemo_resiliency_plugins.runtime.checkpoint.store import CheckpointStore
from tests.harness import JOB_ID, wait_for
from tests.ranks import Group, run, started
from tests.training import Options, digest_of_checkpoint, train

ASYNC = {"async_save": "true"}
MODES: dict[str, dict[str, Any]] = {"sync": {}, "async": ASYNC}
BY_MODE = pytest.mark.parametrize("mode", MODES)


def store(group: Group) -> CheckpointStore:
    return CheckpointStore(group.checkpoints, keep=99)


def digests(group: Group, rank: int = 0) -> dict[int, str]:
    """What a checkpoint of each step must hold on this rank."""
    notes = [note for note in group.notes(rank) if note.what == "step"]
    return {note.step: note.text for note in notes}


def durable(group: Group) -> list[int]:
    return [event["step"] for event in group.events("checkpoint", rank=0) if event["tier"] == "global"]


def progress(group: Group) -> int:
    return int(progress_path(group.nrp, Attempt(job_id=JOB_ID)).read_text())


def resumed(group: Group) -> list[tuple[int, str]]:
    return [(note.step, note.text) for note in group.notes(0) if note.what == "resumed"]


def test_steps_go_on_while_a_slow_writer_works_and_all_says_the_same(tmp_path: Path) -> None:
    options = Options(steps=12, every=3, keep=9, step_s=0.02, write_s=0.3, checkpoint=ASYNC)
    group = run(tmp_path, 2, train, options)
    target = store(group)
    assert target.committed() == durable(group) == [3, 6, 9, 12]
    assert target.pointer() == target.path(12).name
    assert progress(group) == 12
    assert {step: digest_of_checkpoint(target.path(step)) for step in target.committed()} == {
        step: digests(group)[step] for step in target.committed()
    }
    [first, *_] = group.events("checkpoint_scheduled", rank=0)
    [safe, *_] = group.events("checkpoint", rank=0)
    meanwhile = [note.step for note in group.notes(0) if first["time"] < note.time < safe["time"]]
    assert meanwhile == [4, 5, 6]
    said = re.findall(r"(Scheduling async checkpoint save|is durable)", group.log)
    assert said == ["Scheduling async checkpoint save", "is durable"] * 4


@BY_MODE
def test_a_failed_write_on_one_rank_ends_all_at_the_same_step(tmp_path: Path, mode: str) -> None:
    options = Options(steps=60, every=2, step_s=0.02, failing=(4,), checkpoint=MODES[mode])
    with started(tmp_path, 2, train, options) as group:
        assert group.codes() == [1, 1]
    assert len({group.notes(rank)[-1].step for rank in (0, 1)}) == 1
    for rank in (0, 1):
        [failed] = group.events("checkpoint_failed", rank=rank)
        assert (failed["step"], failed["in_a_row"]) == (4, 1)
        [ended] = group.events("session_failed", rank=rank)
        assert ended["exception"] == "CheckpointError"
    assert "__1_0.distcp" in failed["problem"]
    assert durable(group) == store(group).committed() == [2]
    assert (progress(group), store(group).pointer()) == (2, store(group).path(2).name)


@BY_MODE
def test_tolerated_failures_are_counted_and_the_training_goes_on(tmp_path: Path, mode: str) -> None:
    tolerant = {**MODES[mode], "tolerated_save_failures": 2}
    group = run(tmp_path, 2, train, Options(steps=10, failing=(4, 6), checkpoint=tolerant))
    for rank in (0, 1):
        counts = [(event["step"], event["in_a_row"]) for event in group.events("checkpoint_failed", rank=rank)]
        assert counts == [(4, 1), (6, 2)]
    assert durable(group) == [2, 8, 10]
    assert "checkpoint of step 6 failed (2 in a row, 2 tolerated)" in group.log
    with started(tmp_path, 2, train, Options(steps=20, failing=(12, 14, 16), checkpoint=tolerant)) as group:
        assert group.codes() == [1, 1]
    assert store(group).newest_whole()[0] == 10


def test_the_failure_of_the_last_save_is_never_tolerated(tmp_path: Path) -> None:
    options = Options(steps=4, failing=(4,), checkpoint={**ASYNC, "tolerated_save_failures": 9})
    with started(tmp_path, 2, train, options) as group:
        assert group.codes() == [1, 1]
    assert group.verdict is None


def test_a_deaf_writer_is_an_error_on_all_ranks_in_seconds(tmp_path: Path) -> None:
    options = Options(steps=99, step_s=0.05, deaf=4, checkpoint={**ASYNC, "drain_timeout_s": 1})
    with started(tmp_path, 2, train, options) as group:
        assert group.codes(30) == [1, 1]
    assert store(group).newest_whole()[0] == 2
    ends = [group.events("session_failed", rank=rank)[0]["time"] for rank in (0, 1)]
    scheduled = group.events("checkpoint_scheduled", rank=0)[1]["time"]
    assert max(ends) - scheduled < 10


@pytest.mark.parametrize(("end", "code"), [("normal", 0), ("exception", 1), ("exit", 0)])
def test_the_last_save_is_drained_however_the_session_is_left(tmp_path: Path, end: str, code: int) -> None:
    options = Options(steps=3, every=2, write_s=0.5, end=end, early=end != "normal", checkpoint=ASYNC)
    with started(tmp_path, 2, train, options) as group:
        assert group.codes() == [code, code]
    assert store(group).newest_whole()[0] == (3 if end == "normal" else 2)


def test_a_signal_in_the_middle_of_a_save_leaves_no_marker(tmp_path: Path) -> None:
    with started(tmp_path, 2, train, Options(steps=99, step_s=0.05, write_s=5.0, checkpoint=ASYNC)) as group:
        wait_for(lambda: len(group.events("checkpoint_scheduled")) == 2)
        began = time.monotonic()
        for process in group.processes:
            process.terminate()
        assert group.codes() == [-signal.SIGTERM] * 2
        assert time.monotonic() - began < 3
    assert store(group).committed() == []


def await_steps(group: Group, steps: int, *, then_s: float) -> None:
    before = len(group.notes(0))
    wait_for(lambda: len(group.notes(0)) > before + steps or not group.processes[0].is_alive())
    end = time.monotonic() + then_s
    wait_for(lambda: time.monotonic() > end)


def kill_and_resume(root: Path, seed: int, mode: str) -> None:
    """Kill all ranks at a random moment of a save, several times, and see what the next start goes on from."""
    draw = random.Random(seed)
    options = Options(steps=10**6, every=2, step_s=0.01, write_s=0.02, width=256, checkpoint=MODES[mode])
    known: dict[int, str] = {}
    for _ in range(3):
        with started(root, 2, train, options) as group:
            await_steps(group, draw.randrange(4, 9), then_s=draw.random() * 0.1)
            safe = durable(group)
            group.kill()
        known.update(digests(group))
        newest = store(group).newest_whole()[0]
        assert newest is not None
        assert newest >= max(safe, default=0)
        assert digest_of_checkpoint(store(group).path(newest), width=256) == known[newest]
    group = run(root, 2, train, Options(steps=0, width=256))
    assert resumed(group)[-1] == (newest, known[newest])


@BY_MODE
def test_a_kill_in_the_middle_of_a_save_costs_nothing_that_was_durable(tmp_path: Path, mode: str) -> None:
    seed = random.SystemRandom().randrange(10**6)
    print(f"{seed=}")
    kill_and_resume(tmp_path, seed, mode)


@pytest.mark.slow
@BY_MODE
@pytest.mark.parametrize("turn", range(25))
def test_many_kills_cost_nothing_that_was_durable(tmp_path: Path, mode: str, turn: int) -> None:
    seed = turn * 1000 + random.SystemRandom().randrange(1000)
    print(f"{seed=}")
    kill_and_resume(tmp_path, seed, mode)


@contextmanager
def small_disk(path: Path) -> Iterator[None]:
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=6m", "none", str(path)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("mounting needs root")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@BY_MODE
def test_a_full_disk_leaves_the_last_good_one(tmp_path: Path, mode: str) -> None:
    with small_disk(tmp_path / "checkpoints"):
        options = Options(steps=60, every=2, keep=9, width=8000, step_s=0.01, checkpoint=MODES[mode])
        with started(tmp_path, 2, train, options) as group:
            assert group.codes() == [1, 1]
        assert durable(group)
        assert store(group).newest_whole()[0] == durable(group)[-1]
        failed = group.events("checkpoint_failed", rank=1)[-1]
        assert re.search(r"\(\d MB were free\)", failed["problem"])
        assert not store(group).path(failed["step"]).exists()


def test_a_directory_that_becomes_read_only_is_an_error_or_tolerated(tmp_path: Path) -> None:
    tolerant = {**ASYNC, "tolerated_save_failures": 2}
    with small_disk(tmp_path / "checkpoints"):
        options = Options(steps=200, every=2, step_s=0.05, checkpoint=tolerant)
        with started(tmp_path, 2, train, options) as group:
            wait_for(lambda: durable(group))
            subprocess.run(["mount", "-o", "remount,ro", str(group.checkpoints)], check=True)
            assert group.codes() == [1, 1]
        assert [event["in_a_row"] for event in group.events("checkpoint_failed", rank=1)] == [1, 2, 3]
        assert store(group).newest_whole()[0] == durable(group)[-1]
