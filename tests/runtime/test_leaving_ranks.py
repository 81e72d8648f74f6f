"""Ranks that are told to leave, or leave alone, while a checkpoint is being written: how they end, and what is left."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from nemo_resiliency_plugins.contract import Reason
from tests.harness import wait_for
from tests.ranks import Group, run, started
from tests.runtime.conftest import ASYNC, BY_MODE, MODES
from tests.training import Options, train

IN_BOTH_TIERS = {"non_persistent_save_interval": 2}


def saves(group: Group, rank: int = 0) -> list[tuple[str, int]]:
    return [(event["tier"], event["step"]) for event in group.events("checkpoint", rank=rank)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Group:
    return run(tmp_path_factory.mktemp("undisturbed"), 2, train, Options(steps=8, every=4))


@BY_MODE
@pytest.mark.parametrize("every", [4, 6], ids=["global", "local"])
def test_a_notice_in_the_step_before_a_regular_save_makes_it_the_last(
    tmp_path: Path, undisturbed: Group, mode: str, every: int
) -> None:
    options = Options(
        steps=8,
        every=every,
        write_s=0.2,
        handler="ours",
        local=str(tmp_path / "local-{node}"),
        checkpoint={**MODES[mode], **IN_BOTH_TIERS},
    )
    group = run(tmp_path, 2, train, replace(options, notice_at=3))
    for rank in (0, 1):
        assert [event["step"] for event in group.events("preempted", rank=rank)] == [4]
        expected = [("local", 2), ("global", 4)] if every == 4 else [("local", 2), ("local", 4), ("global", 4)]
        assert saves(group, rank) == expected
    assert group.verdict is not None
    assert (group.verdict.reason, group.verdict.step) == (Reason.PREEMPTED, 4)
    again = run(tmp_path, 2, train, options)
    for rank in (0, 1):
        assert again.resumed(rank)[-1] == (4, undisturbed.digests(rank)[4])
        assert again.digests(rank)[8] == undisturbed.digests(rank)[8]


@pytest.mark.parametrize(
    ("handler", "code", "committed"),
    [("none", -signal.SIGTERM, []), ("own", 128 + signal.SIGTERM, [2]), ("ours", 0, [2, 4])],
)
def test_a_signal_while_a_save_is_queued_is_a_kill_or_what_was_written_is_whole(
    tmp_path: Path, handler: str, code: int, committed: list[int]
) -> None:
    options = Options(steps=99, write_s=1.0, keep=9, handler=handler, checkpoint=ASYNC)
    with started(tmp_path, 2, train, options) as group:
        await_queued(group)
        began = time.monotonic()
        for process in group.processes:
            process.terminate()
        assert group.codes() == [code, code]
        assert time.monotonic() - began < 8
    assert group.store.committed() == group.durable() == committed


def await_queued(group: Group) -> None:
    """Return when all ranks have come to the second save, and the first is still being written."""
    wait_for(lambda: all(4 in group.digests(rank) for rank in (0, 1)))
    assert not group.durable()


@pytest.mark.parametrize("handler", ["own", "ours"])
def test_a_signal_while_a_deaf_writer_is_waited_for_ends_in_seconds_and_not_well(tmp_path: Path, handler: str) -> None:
    options = Options(steps=99, deaf=2, handler=handler, checkpoint={**ASYNC, "drain_timeout_s": 2})
    with started(tmp_path, 2, train, options) as group:
        await_queued(group)
        began = time.monotonic()
        for process in group.processes:
            process.terminate()
        assert 0 not in group.codes(30)
        assert time.monotonic() - began < 10
    assert group.store.committed() == []


@BY_MODE
def test_a_writer_that_dies_on_one_rank_ends_all_in_seconds(tmp_path: Path, mode: str) -> None:
    with started(tmp_path, 2, train, Options(steps=99, step_s=0.05, dying=4, checkpoint=MODES[mode])) as group:
        assert group.codes(15) == [1, 1]
    assert group.store.newest_whole()[0] == 2


def test_a_rank_that_saves_and_finishes_alone_waits_for_the_others(tmp_path: Path) -> None:
    group = run(tmp_path, 2, train, Options(steps=5, end="rank 0", checkpoint=ASYNC))
    assert group.durable() == [2, 4, 5]
    assert [event["step"] for rank in (0, 1) for event in group.events("finished", rank=rank)] == [5, 5]
