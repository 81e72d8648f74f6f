"""Stragglers among four ranks: the slow one is named with its phase, and its victims are not."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from nemo_resiliency_plugins.contract import Reason
from nemo_resiliency_plugins.runtime.checkpoint.store import CheckpointStore
from tests.ranks import Group, run
from tests.slowness import Options, Slowness, train

RANKS = 4
SLOW = 2


def named(group: Group) -> set[tuple[int, str]]:
    return {(event["slow_rank"], event["phase"]) for event in group.events("straggler", rank=0)}


def scores(group: Group, kind: str) -> list[dict[str, float]]:
    return [event["scores"][kind] for event in group.events("straggler_report", rank=0) if kind in event["scores"]]


@pytest.mark.parametrize(
    ("phase", "sharded"),
    [
        ("data", False),
        pytest.param("forward", False, marks=pytest.mark.slow),
        ("backward", False),
        pytest.param("optimizer", False, marks=pytest.mark.slow),
        ("data", True),
        pytest.param("forward", True, marks=pytest.mark.slow),
        pytest.param("backward", True, marks=pytest.mark.slow),
    ],
)
def test_a_slow_rank_is_named_with_its_phase(phase: str, sharded: bool, tmp_path: Path) -> None:
    group = run(tmp_path, RANKS, train, Options(steps=25, slowness=Slowness(phase, ranks=(SLOW,)), sharded=sharded))
    assert named(group) == {(SLOW, phase)}
    assert f"rank {SLOW} on node{SLOW} (Host relative performance 0." in group.log
    assert f"slowest in {phase}" in group.log


@pytest.mark.parametrize(
    "slowness",
    [
        pytest.param(Slowness("data", ranks=tuple(range(RANKS))), id="all equally"),
        pytest.param(Slowness("data", ranks=tuple(range(RANKS)), since=20), id="all from some step on"),
        pytest.param(Slowness("data", ranks=(SLOW,), extra_s=1.5, since=10, until=11), id="one long pause"),
        pytest.param(Slowness(), id="nobody"),
    ],
)
def test_nobody_is_named(slowness: Slowness, tmp_path: Path) -> None:
    group = run(tmp_path, RANKS, train, Options(steps=40, slowness=slowness))
    assert scores(group, "host_relative")
    assert not group.events("straggler", rank=0)


@pytest.mark.parametrize(
    "loop",
    [
        pytest.param({"micro_batches": 2}, id="micro-batches", marks=pytest.mark.slow),
        pytest.param({"micro_batches": 2, "sync_all": True}, id="micro-batches that all sync"),
        pytest.param({"micro_batches": 2, "sync_all": True, "attach": "inner"}, id="the inner module attached"),
        pytest.param({"buffers": True}, id="buffers", marks=pytest.mark.slow),
        pytest.param({"buffers": True, "attach": "inner"}, id="buffers, the inner module attached"),
        pytest.param({"skipped": (0, 1, 6, 7, 8)}, id="skipped steps"),
    ],
)
def test_in_any_loop_the_slow_rank_alone_is_named(loop: dict[str, Any], tmp_path: Path) -> None:
    group = run(tmp_path, RANKS, train, Options(steps=25, slowness=Slowness("data", ranks=(SLOW,)), **loop))
    assert named(group) == {(SLOW, "data")}


def test_a_rank_that_recovers_is_named_no_more_and_one_that_turns_slow_is_compared_with_itself(tmp_path: Path) -> None:
    group = run(
        tmp_path, RANKS, train, Options(steps=100, slowness=Slowness("data", ranks=(SLOW,), since=30, until=60))
    )
    reports = scores(group, "host_individual")
    lowest = [report[str(SLOW)] for report in reports]
    assert lowest[0] > 0.8
    assert min(lowest) < 0.6
    assert lowest[-1] > 0.8
    assert group.events("straggler", rank=0)[-1]["step"] < group.events("straggler_report", rank=0)[-1]["step"]


def test_what_cannot_be_had_is_absent_with_its_reason(tmp_path: Path) -> None:
    group = run(tmp_path, 1, train, Options(steps=20))
    assert "GPU relative performance: not available, there is no GPU" in group.log
    assert "Host relative performance: not available, there is one rank only" in group.log
    assert all(math.isfinite(score) for report in scores(group, "host_individual") for score in report.values())


def test_a_run_that_ends_before_its_first_report_is_reported(tmp_path: Path) -> None:
    slowness = Slowness("forward", ranks=(SLOW,))
    group = run(tmp_path, RANKS, train, Options(steps=10, slowness=slowness, detection={"report_time_interval": 300.0}))
    [report] = group.events("straggler_report", rank=0)
    assert (report["step"], report["stragglers"]) == (10, [SLOW])


def test_too_few_steps_are_said_to_be_dropped(tmp_path: Path) -> None:
    group = run(tmp_path, 2, train, Options(steps=3))
    assert "Host relative performance: not available, a rank has seen fewer than 3 steps with a forward" in group.log


def test_all_ranks_stop_for_a_straggler_with_a_checkpoint_and_its_name(tmp_path: Path) -> None:
    options = Options(slowness=Slowness("forward", ranks=(SLOW,)), steps=400, detection={"stop_if_detected": True})
    group = run(tmp_path, RANKS, train, options)
    verdict = group.verdict
    assert verdict is not None
    assert (verdict.reason, verdict.code, verdict.rank, verdict.node) == (Reason.STRAGGLER, 0, SLOW, f"node{SLOW}")
    assert 0 < verdict.step < 400
    assert CheckpointStore(group.checkpoints, keep=2).committed() == [verdict.step]
    assert not group.events("finished")


def test_a_stop_waits_for_as_many_reports_as_are_to_confirm_it(tmp_path: Path) -> None:
    detection = {"stop_if_detected": True, "reports_to_confirm": 2}
    group = run(tmp_path, RANKS, train, Options(slowness=Slowness(ranks=(SLOW,)), steps=400, detection=detection))
    assert [report["stragglers"] for report in group.events("straggler_report", rank=0)] == [[], [SLOW]]


@pytest.mark.parametrize("fields", [{}, {"enable_logging": False}])
def test_reports_are_written_where_they_are_wanted(fields: dict[str, Any], tmp_path: Path) -> None:
    group = run(tmp_path, 2, train, Options(steps=30, slowness=Slowness(ranks=(1,)), detection=fields))
    assert ("straggler report after" in group.log) == (fields == {})
    assert "stragglers: rank 1" in group.log


def test_without_attach_it_is_said_that_nothing_is_measured(tmp_path: Path) -> None:
    group = run(tmp_path, 2, train, Options(steps=4, attach="nothing"))
    assert "nothing is measured: attach() was not called" in group.log


def test_steps_that_a_destroyed_process_group_leaves_unreported_are_said(tmp_path: Path) -> None:
    group = run(tmp_path, 2, train, Options(steps=10, destroy=True, detection={"report_time_interval": 300.0}))
    assert "the last 10 steps are in no straggler report" in group.log
    assert group.verdict is not None
