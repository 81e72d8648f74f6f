"""From what ranks say to names: simulated ranks, healthy and slow."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from nemo_resiliency_plugins.config import NVRxStragglerDetectionConfig
from nemo_resiliency_plugins.runtime.stragglers.phases import PHASES
from nemo_resiliency_plugins.runtime.stragglers.scores import (
    GPU_INDIVIDUAL,
    GPU_RELATIVE,
    HOST_INDIVIDUAL,
    HOST_RELATIVE,
    Confirmation,
    Report,
    Said,
)
from nemo_resiliency_plugins.runtime.stragglers.telling import in_words, name
from nemo_resiliency_plugins.runtime.stragglers.window import FEWEST, LONGEST, Window

CONFIG = NVRxStragglerDetectionConfig()
SHARES = (0.1, 0.3, 0.5, 0.05, 0.05)
NO_GPU = "there is no GPU"


def host(total: float, best: float | None = None, shares: Sequence[float] = SHARES) -> dict[str, float]:
    phases = {phase: total * share for phase, share in zip(PHASES, shares, strict=True)}
    return {"total": total, "best": total if best is None else best, **phases}


def said(total: float, best: float | None = None, node: str = "node", **gpu: float) -> Said:
    return Said(node, gpu, NO_GPU, host(total, best), "")


def test_ten_thousand_healthy_reports_name_nobody() -> None:
    draw = random.Random(58)
    windows = [Window() for _ in range(8)]
    for _ in range(10_000):
        for window in windows:
            factor = draw.gauss(1.0, 0.03)
            for _ in range(FEWEST):
                window.add([share * factor for share in SHARES])
        report = Report([Said("node", {}, NO_GPU, window.close(), "") for window in windows], CONFIG)
        assert not report.slow(), (report.scores, "seed 58")


def test_a_rank_at_six_tenths_is_named_within_two_reports() -> None:
    draw = random.Random(62)
    for _ in range(200):
        totals = [draw.gauss(1.0, 0.03) / (0.6 if rank == 3 else 1.0) for rank in range(8)]
        confirmation = Confirmation(2)
        report = Report([said(total) for total in totals], CONFIG)
        found = [confirmation.confirmed(report.slow()) for _ in range(2)]
        assert [[each.rank for each in stragglers] for stragglers in found] == [[], [3]]


def test_scores_are_shares_of_the_usual_speed_and_of_the_own_best() -> None:
    report = Report([said(1.0), said(2.0, best=1.0), said(1.0), said(0.1)], CONFIG)
    assert report.scores == {
        HOST_RELATIVE: {0: 1.0, 1: 0.5, 2: 1.0, 3: 1.0},
        HOST_INDIVIDUAL: {0: 1.0, 1: 0.5, 2: 1.0, 3: 1.0},
    }
    assert report.absent == {GPU_RELATIVE: NO_GPU, GPU_INDIVIDUAL: NO_GPU}
    [straggler] = report.slow().values()
    assert (straggler.rank, straggler.scores) == (1, {HOST_RELATIVE: 0.5, HOST_INDIVIDUAL: 0.5})


def test_the_phase_is_that_in_which_most_time_is_lost() -> None:
    slow = Said("node7", {}, NO_GPU, host(1.0, shares=(0.1, 1.3, 0.9, 0.05, 0.05)) | {"total": 2.4}, "")
    [straggler] = Report([said(1.0), said(1.0), slow], CONFIG).slow().values()
    assert (straggler.phase, straggler.node) == ("forward", "node7")
    assert name(straggler).startswith("rank 2 on node7 (Host relative performance 0.42")


def test_a_straggler_that_only_its_gpu_shows_has_no_phase() -> None:
    gpus = [{GPU_RELATIVE: score, GPU_INDIVIDUAL: 1.0} for score in (1.0, 0.99, 0.4)]
    report = Report([said(1.0, **gpu) for gpu in gpus], CONFIG)
    [straggler] = report.slow().values()
    assert (straggler.rank, dict(straggler.scores), straggler.phase) == (2, {GPU_RELATIVE: 0.4}, None)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_what_has_become_slow_on_most_ranks_names_none_of_several(ranks: int) -> None:
    slow = Report([said(2.0, best=1.0) for _ in range(ranks)], CONFIG).slow()
    assert list(slow) == ([0] if ranks == 1 else [])


@pytest.mark.parametrize(
    ("nodes", "slow", "named"),
    [
        (["a", "b", "c", "d"], [0, 2], []),
        (["a", "a", "b", "b"], [2, 3], [2, 3]),
        (["a", "a", "b", "b"], [0, 2], []),
        (["a", "a", "a", "a"], [2, 3], []),
        (["a", "a", "a", "a"], [3], [3]),
    ],
)
def test_half_of_the_ranks_are_named_only_if_they_are_on_one_node(
    nodes: list[str], slow: list[int], named: list[int]
) -> None:
    ranks = [said(2.0 if rank in slow else 1.0, node=node) for rank, node in enumerate(nodes)]
    assert list(Report(ranks, CONFIG).slow()) == named


def test_one_of_two_ranks_is_named() -> None:
    assert list(Report([said(1.0), said(2.0)], CONFIG).slow()) == [1]


def test_a_score_that_one_rank_lacks_is_absent_with_the_reason_of_that_rank() -> None:
    mute = Said("node", {}, "kernels cannot be profiled", None, "too few steps")
    report = Report([said(1.0, gpu_relative=1.0, gpu_individual=1.0), mute], CONFIG)
    assert not report.scores
    assert set(report.absent.values()) == {"kernels cannot be profiled", "too few steps"}


@pytest.mark.parametrize(
    ("field", "kept"),
    [
        ("calc_relative_gpu_perf", {HOST_INDIVIDUAL, GPU_INDIVIDUAL}),
        ("calc_individual_gpu_perf", {HOST_RELATIVE, GPU_RELATIVE}),
    ],
)
def test_scores_that_are_not_wanted_are_not_there(field: str, kept: set[str]) -> None:
    report = Report([said(1.0), said(1.0)], NVRxStragglerDetectionConfig(**{field: False}))
    assert {*report.scores, *report.absent} == kept


@pytest.mark.parametrize(
    ("field", "kind"),
    [("gpu_relative_perf_threshold", HOST_RELATIVE), ("gpu_individual_perf_threshold", HOST_INDIVIDUAL)],
)
def test_each_threshold_rules_over_its_scores(field: str, kind: str) -> None:
    config = NVRxStragglerDetectionConfig(**{field: 0.95})
    [straggler] = Report([said(1.0), said(1.0), said(1.1, best=1.0)], config).slow().values()
    assert list(straggler.scores) == [kind]


def test_a_report_shows_the_worst_and_the_best() -> None:
    lines = in_words(Report([said(1.0, node=f"node{rank}") for rank in range(9)] + [said(2.0)], CONFIG), 2).splitlines()
    assert lines[0] == "GPU relative performance: not available, there is no GPU"
    begin = lines.index("Host relative performance:")
    assert lines[begin + 1 : begin + 3] == ["  Worst performing 2/10 ranks:", "    Rank=9 Node=node Score=0.50"]
    assert lines[begin + 4 : begin + 6] == ["  Best performing 2/10 ranks:", "    Rank=8 Node=node8 Score=1.00"]


def test_no_scores_are_shown_where_none_are_to_be_printed() -> None:
    assert "Rank=" not in in_words(Report([said(1.0), said(2.0)], CONFIG), 0)


def test_a_window_gives_medians_and_begins_anew() -> None:
    window = Window()
    for total in (1.0, 1.0, 50.0):
        window.add([total, 0.0, 0.0, 0.0, 0.0])
    summary = window.close()
    assert summary is not None
    assert (summary["total"], summary["data"], summary["optimizer"]) == (1.0, 1.0, 0.0)
    assert window.close() is None


def test_a_long_interval_takes_no_more_memory_than_a_short_one() -> None:
    window = Window()
    for _ in range(200_000):
        window.add([1.0, 0.0, 0.0, 0.0, 0.0])
    assert len(window._steps) == LONGEST
