"""Suspect results among four ranks: seen by all before the optimizer, tried again, and attributed."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

from nemo_resiliency_plugins.contract import Reason
from tests.ranks import Group, run, started
from tests.results import INF, NAN, Bad, Options, train

RANKS = 4
GONE = [16] * RANKS
FAILED = [17] * RANKS


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The weights of a run in which nothing is wrong, and nobody looks."""
    return weights(
        run(tmp_path_factory.mktemp("undisturbed"), RANKS, train, Options(results={"rerun_mode": "disabled"}))
    )


def weights(group: Group) -> str:
    [found] = {note.text for rank in range(RANKS) for note in group.notes(rank)[-1:] if note.what == "to"}
    return found


def cases(group: Group) -> list[dict[str, Any]]:
    return group.events("suspect_result", rank=0)


def ends(root: Path, options: Options, codes: list[int]) -> Group:
    with started(root, RANKS, train, options) as group:
        assert group.codes() == codes, group.log[-4000:]
    return group


ONCE = {
    "NaN in the loss": Bad(times=1),
    "NaN in the first micro-batch": Bad(times=1, micro_batch=0),
    "NaN on every rank": Bad(times=1, rank=None),
    "Inf in the loss": Bad(times=1, factor=INF),
    "Inf in gradients": Bad(times=1, factor=INF, in_gradients=True),
    "Inf in the first gradients": Bad(times=1, factor=INF, in_gradients=True, micro_batch=0),
    "a spike": Bad(times=1, factor=1e4, step=6),
}


@pytest.mark.parametrize("bad", ONCE.values(), ids=ONCE)
def test_a_fault_that_does_not_come_again_leaves_no_trace_in_the_weights(
    bad: Bad, tmp_path: Path, undisturbed: str
) -> None:
    group = run(tmp_path, RANKS, train, Options(bad=[bad], results={"check_for_spiky_loss": True}))
    assert weights(group) == undisturbed
    [case] = cases(group)
    assert (case["outcome"], case["step"], case["alike"]) == ("transient", bad.step, False)
    assert case["counts"] == {"transient": 1}
    rank = bad.rank or 0
    assert (case["suspect_rank"], case["node"], case["device"]) == (rank, f"node{rank}", "cpu")
    assert case["micro_batch"] == bad.micro_batch
    assert f"on rank {rank}, micro-batch {bad.micro_batch} (node{rank}, cpu)" in group.log
    assert all(math.isfinite(float(note.text)) for note in group.notes(2) if note.what == "loss")


ALWAYS = {
    "NaN in the loss": Bad(on="node2"),
    "Inf in the last gradients": Bad(on="node2", factor=INF, in_gradients=True),
    "a spike": Bad(on="node2", factor=1e4, step=6),
}


@pytest.mark.parametrize(
    "bad",
    [
        *(pytest.param(bad, id=name) for name, bad in ALWAYS.items()),
        pytest.param(
            Bad(on="node2", factor=INF, in_gradients=True, micro_batch=0),
            id="Inf in the first gradients",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_device_whose_results_are_always_bad_is_left_and_named(bad: Bad, tmp_path: Path, undisturbed: str) -> None:
    options = Options(bad=[bad], results={"check_for_spiky_loss": True})
    group = ends(tmp_path, options, GONE)
    verdict = group.verdict
    assert verdict is not None
    assert (verdict.reason, verdict.code, verdict.rank, verdict.node) == (Reason.RERUN_ELSEWHERE, 16, 2, "node2")
    assert verdict.step == bad.step
    [case] = cases(group)
    assert (case["outcome"], case["suspect_rank"], case["micro_batch"]) == ("elsewhere", 2, bad.micro_batch)

    group = run(tmp_path, RANKS, train, dataclasses.replace(options, nodes=10))
    assert weights(group) == undisturbed
    [_, case] = cases(group)
    assert (case["outcome"], case["step"], case["suspect_rank"], case["node"]) == ("first_device", bad.step, 2, "node2")
    assert "the first device is at fault" in group.log
    assert not (group.checkpoints / "rerun_suspect.json").exists()


def test_a_result_that_is_the_same_everywhere_fails(tmp_path: Path) -> None:
    options = Options(bad=[Bad()])
    ends(tmp_path, options, GONE)
    group = ends(tmp_path, dataclasses.replace(options, nodes=10), FAILED)
    assert group.verdict is not None
    assert (group.verdict.reason, group.verdict.code, group.verdict.node) == (Reason.VALIDATION_FAILED, 17, "node12")
    assert [case["outcome"] for case in cases(group)] == ["elsewhere", "failed"]
    assert "the correct result of this step, or a fault of the software" in group.log
    assert not group.events("finished")


def test_a_restart_on_the_same_device_is_said_to_be_that(tmp_path: Path) -> None:
    options = Options(bad=[Bad()])
    ends(tmp_path, options, GONE)
    group = ends(tmp_path, options, FAILED)
    assert "it came again after a restart, but on the same device" in group.log


def test_a_device_that_is_bad_with_the_work_of_another_rank_is_the_same_device(tmp_path: Path) -> None:
    options = Options(bad=[Bad(rank=None, on="node2")])
    ends(tmp_path, options, GONE)
    group = ends(tmp_path, dataclasses.replace(options, nodes=-1), FAILED)
    assert [(case["suspect_rank"], case["node"]) for case in cases(group)] == [(2, "node2"), (3, "node2")]
    assert "it came again after a restart, but on the same device" in group.log


@pytest.mark.parametrize(
    ("accept", "factor"), [pytest.param("everything", NAN, marks=pytest.mark.slow), ("spikes", 1e4)]
)
def test_a_result_that_is_accepted_is_trained_on(accept: str, factor: float, tmp_path: Path) -> None:
    results = {"accept": accept, "check_for_spiky_loss": True}
    options = Options(bad=[Bad(step=6, factor=factor)], results=results)
    ends(tmp_path, options, GONE)
    group = run(tmp_path, RANKS, train, dataclasses.replace(options, nodes=10))
    assert [case["outcome"] for case in cases(group)] == ["elsewhere", "accepted"]
    assert group.events("finished", rank=0)


@pytest.mark.slow
def test_a_nan_is_not_accepted_where_spikes_are(tmp_path: Path) -> None:
    options = Options(bad=[Bad()], results={"accept": "spikes"})
    ends(tmp_path, options, GONE)
    ends(tmp_path, dataclasses.replace(options, nodes=10), FAILED)


def test_the_state_of_the_suspect_step_is_kept_and_never_resumed_from(tmp_path: Path) -> None:
    group = ends(tmp_path, Options(bad=[Bad()]), GONE)
    assert (group.checkpoints / "suspect" / "step_000000004" / "COMMITTED").exists()
    suspect = json.loads((group.checkpoints / "rerun_suspect.json").read_text())
    assert (suspect["step"], suspect["rank"], suspect["micro_batch"]) == (4, 2, 1)
    assert all(math.isnan(value) for value in suspect["values"])
    assert suspect["places"][2] == ["node2", "cpu"]
    later = run(tmp_path, RANKS, train, Options(results={"rerun_mode": "disabled"}, nodes=10))
    assert [event["step"] for event in later.events("resumed", rank=0)] == [None, 3]
    looking = Options(directory="checkpoints/suspect", steps=5)
    assert run(tmp_path, RANKS, train, looking).events("resumed", rank=0)[-1]["step"] == 4


def test_weights_that_hold_nan_are_not_resumed_from(tmp_path: Path, undisturbed: str) -> None:
    options = Options(poison_after=5)
    group = ends(tmp_path, options, GONE)
    assert (group.checkpoints / "step_000000006" / "COMMITTED").exists()
    assert group.verdict is not None
    assert (group.verdict.reason, group.verdict.node) == (Reason.RERUN_ELSEWHERE, "")
    assert "the state was bad before this step" in group.log
    group = run(tmp_path, RANKS, train, Options(nodes=10))
    assert group.events("resumed", rank=0)[-1]["step"] == 3
    assert "skipped a checkpoint" in group.log
    assert "NaN or Inf in module.head.weight" in group.log
    assert weights(group) == undisturbed


def test_validation_can_be_switched_on_and_off_between_starts(tmp_path: Path, undisturbed: str) -> None:
    off = {"rerun_mode": "disabled"}
    run(tmp_path, RANKS, train, Options(steps=3, results=off))
    run(tmp_path, RANKS, train, Options(steps=5))
    group = run(tmp_path, RANKS, train, Options(results=off))
    assert [event["step"] for event in group.events("resumed", rank=0)] == [None, 3, 5]
    assert weights(group) == undisturbed


@pytest.mark.slow
def test_counts_survive_a_restart(tmp_path: Path) -> None:
    run(tmp_path, RANKS, train, Options(steps=3, bad=[Bad(step=1, times=1)]))
    group = run(tmp_path, RANKS, train, Options(bad=[Bad(times=1)]))
    assert [case["counts"] for case in cases(group)] == [{"transient": 1}, {"transient": 2}]


@pytest.mark.slow
def test_a_spike_within_the_tolerance_of_the_limit_is_no_fault(tmp_path: Path) -> None:
    results = {"check_for_spiky_loss": True, "tolerance": 1.0}
    group = run(tmp_path, RANKS, train, Options(bad=[Bad(step=6, factor=1e4, times=1)], results=results))
    assert [case["outcome"] for case in cases(group)] == ["borderline"]


@pytest.mark.parametrize("noise", [0.0, 1e-3])
def test_determinism_stats_change_nothing(noise: float, tmp_path: Path, undisturbed: str) -> None:
    results = {"rerun_mode": "report_determinism_stats", "determinism_interval": 2}
    group = run(tmp_path, RANKS, train, Options(results=results, noise=noise))
    assert weights(group) == undisturbed
    told = group.events("determinism", rank=0)
    assert [event["step"] for event in told] == [0, 2, 4, 6]
    assert [event["ranks"] for event in told] == [[2] if noise else []] * 4
    assert all((0 < event["max_loss_difference"] < 0.1) == bool(noise) for event in told)
    assert f"determinism: {4 if noise else 0} of 4 steps that ran twice differed" in group.log


@pytest.mark.slow
def test_sharded_models_are_validated_too(tmp_path: Path) -> None:
    off = run(tmp_path / "off", RANKS, train, Options(results={"rerun_mode": "disabled"}, sharded=True))
    once = run(tmp_path / "once", RANKS, train, Options(bad=[Bad(times=1)], sharded=True))
    assert [case["outcome"] for case in cases(once)] == ["transient"]
    assert [once.notes(rank)[-1].text for rank in range(RANKS)] == [off.notes(rank)[-1].text for rank in range(RANKS)]


@pytest.mark.slow
def test_whose_sharded_gradients_were_bad_is_not_guessed(tmp_path: Path) -> None:
    bad = Bad(on="node2", factor=INF, in_gradients=True)
    group = ends(tmp_path, Options(bad=[bad], sharded=True), GONE)
    assert group.verdict is not None
    assert (group.verdict.rank, group.verdict.node) == (-1, "")
    group = run(tmp_path, RANKS, train, Options(bad=[bad], sharded=True, nodes=10))
    assert [case["outcome"] for case in cases(group)] == ["elsewhere", "first_device"]


@pytest.mark.slow
def test_the_window_survives_a_restart_with_another_number_of_ranks(tmp_path: Path) -> None:
    results = {"check_for_spiky_loss": True, "spiky_loss_factor": 3}
    run(tmp_path, RANKS, train, Options(steps=6, results=results))
    bad = Bad(step=6, rank=1, factor=30.0, times=1)
    group = run(tmp_path, 2, train, Options(steps=7, bad=[bad], results=results))
    [case] = cases(group)
    assert (case["outcome"], case["kind"], case["suspect_rank"]) == ("transient", "a spike in the loss", 1)
