"""Saves of several ranks that are slow or fail: what is left is whole, and the newest that was called durable."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nemo_resiliency_plugins.contract import Attempt, progress_path
from tests.harness import JOB_ID, wait_for
from tests.ranks import Group, run, started
from tests.runtime.conftest import ASYNC, BY_MODE, MODES
from tests.training import Options, digest_of_checkpoint, train


def progress(group: Group) -> int:
    return int(progress_path(group.nrp, Attempt(job_id=JOB_ID)).read_text())


def test_steps_go_on_while_a_slow_writer_works_and_all_says_the_same(tmp_path: Path) -> None:
    options = Options(steps=12, every=3, keep=9, step_s=0.02, write_s=0.3, checkpoint=ASYNC)
    group = run(tmp_path, 2, train, options)
    target = group.store
    assert target.committed() == group.durable() == [3, 6, 9, 12]
    assert target.pointer() == target.path(12).name
    assert progress(group) == 12
    assert {step: digest_of_checkpoint(target.path(step)) for step in target.committed()} == {
        step: group.digests()[step] for step in target.committed()
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
    assert group.durable() == group.store.committed() == [2]
    assert (progress(group), group.store.pointer()) == (2, group.store.path(2).name)


@BY_MODE
def test_tolerated_failures_are_counted_and_the_training_goes_on(tmp_path: Path, mode: str) -> None:
    tolerant = {**MODES[mode], "tolerated_save_failures": 2}
    group = run(tmp_path, 2, train, Options(steps=10, failing=(4, 6), checkpoint=tolerant))
    for rank in (0, 1):
        counts = [(event["step"], event["in_a_row"]) for event in group.events("checkpoint_failed", rank=rank)]
        assert counts == [(4, 1), (6, 2)]
    assert group.durable() == [2, 8, 10]
    assert "checkpoint of step 6 failed (2 in a row, 2 tolerated)" in group.log
    with started(tmp_path, 2, train, Options(steps=20, failing=(12, 14, 16), checkpoint=tolerant)) as group:
        assert group.codes() == [1, 1]
    assert group.store.newest_whole()[0] == 10


def test_the_failure_of_the_last_save_is_never_tolerated(tmp_path: Path) -> None:
    options = Options(steps=4, failing=(4,), checkpoint={**ASYNC, "tolerated_save_failures": 9})
    with started(tmp_path, 2, train, options) as group:
        assert group.codes() == [1, 1]
    assert group.verdict is None


def test_a_deaf_writer_is_an_error_on_all_ranks_in_seconds(tmp_path: Path) -> None:
    options = Options(steps=99, step_s=0.05, deaf=4, checkpoint={**ASYNC, "drain_timeout_s": 1})
    with started(tmp_path, 2, train, options) as group:
        assert group.codes(30) == [1, 1]
    assert group.store.newest_whole()[0] == 2
    ends = [group.events("session_failed", rank=rank)[0]["time"] for rank in (0, 1)]
    scheduled = group.events("checkpoint_scheduled", rank=0)[1]["time"]
    assert max(ends) - scheduled < 10


@pytest.mark.parametrize(("end", "code"), [("normal", 0), ("exception", 1), ("exit", 0)])
def test_the_last_save_is_drained_however_the_session_is_left(tmp_path: Path, end: str, code: int) -> None:
    options = Options(steps=3, every=2, write_s=0.5, end=end, early=end != "normal", checkpoint=ASYNC)
    with started(tmp_path, 2, train, options) as group:
        assert group.codes() == [code, code]
    assert group.store.newest_whole()[0] == (3 if end == "normal" else 2)


def test_a_signal_in_the_middle_of_a_save_leaves_no_marker(tmp_path: Path) -> None:
    with started(tmp_path, 2, train, Options(steps=99, step_s=0.05, write_s=5.0, checkpoint=ASYNC)) as group:
        wait_for(lambda: len(group.events("checkpoint_scheduled")) == 2)
        began = time.monotonic()
        for process in group.processes:
            process.terminate()
        assert group.codes() == [-signal.SIGTERM] * 2
        assert time.monotonic() - began < 3
    assert group.store.committed() == []


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
        assert group.durable()
        assert group.store.newest_whole()[0] == group.durable()[-1]
        failed = group.events("checkpoint_failed", rank=1)[-1]
        assert re.search(r"\(\d MB were free\)", failed["problem"])
        assert not group.store.path(failed["step"]).exists()


def test_a_directory_that_becomes_read_only_is_an_error_or_tolerated(tmp_path: Path) -> None:
    tolerant = {**ASYNC, "tolerated_save_failures": 2}
    with small_disk(tmp_path / "checkpoints"):
        options = Options(steps=200, every=2, step_s=0.05, checkpoint=tolerant)
        with started(tmp_path, 2, train, options) as group:
            wait_for(lambda: group.durable())
            subprocess.run(["mount", "-o", "remount,ro", str(group.checkpoints)], check=True)
            assert group.codes() == [1, 1]
        assert [event["in_a_row"] for event in group.events("checkpoint_failed", rank=1)] == [1, 2, 3]
        assert group.store.newest_whole()[0] == group.durable()[-1]
