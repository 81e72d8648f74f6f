"""What the runs of a step say together, for every combination of them."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_resiliency_plugins.config.rerun import EVERYTHING, NOTHING, SPIKES
from nemo_resiliency_plugins.runtime.rerun.machine import MEANING, Evidence, Outcome, Place, judge
from nemo_resiliency_plugins.runtime.rerun.results import (
    Checks,
    Finding,
    Kind,
    Seen,
    difference,
    equal,
    find,
    magnitude,
)

NAN, INF = math.nan, math.inf
KINDS = [None, *Kind]
PLACES = [None, *Place]
ALL = [Evidence(*each) for each in itertools.product(KINDS, KINDS, [False, True], PLACES)]
NUMBERS = st.one_of(st.floats(), st.sampled_from([NAN, INF, -INF, 0.0, -0.0]))


@pytest.mark.parametrize(
    ("evidence", "outcome"),
    [
        (Evidence(), Outcome.GOOD),
        (Evidence(Kind.NAN), Outcome.TRANSIENT),
        (Evidence(Kind.SPIKE, alike=True), Outcome.BORDERLINE),
        (Evidence(Kind.NAN, Kind.NAN, alike=True), Outcome.ELSEWHERE),
        (Evidence(Kind.NAN, Kind.INF), Outcome.ELSEWHERE),
        (Evidence(place=Place.OTHER), Outcome.FIRST_DEVICE),
        (Evidence(place=Place.SAME), Outcome.NOT_AGAIN),
        (Evidence(Kind.NAN, place=Place.OTHER), Outcome.TRANSIENT),
        (Evidence(Kind.NAN, Kind.NAN, place=Place.OTHER), Outcome.FAILED),
        (Evidence(Kind.NAN, Kind.NAN, place=Place.SAME), Outcome.FAILED),
    ],
)
def test_each_evidence_has_its_outcome(evidence: Evidence, outcome: Outcome) -> None:
    assert judge(evidence, NOTHING) is outcome


@pytest.mark.parametrize("accept", [NOTHING, SPIKES, EVERYTHING])
def test_no_evidence_is_without_an_end(accept: str) -> None:
    for evidence in ALL:
        outcome = judge(evidence, accept)
        assert outcome is Outcome.GOOD or MEANING[outcome]
        # A step is sent to another device once: after that it is good, accepted or the end.
        assert not (evidence.place is not None and outcome is Outcome.ELSEWHERE)
        # Nothing that is suspect in its last run is trained on, unless it came again after a restart and is accepted.
        if evidence.first is not None and evidence.again is not None:
            assert outcome.leaves or (outcome is Outcome.ACCEPTED and evidence.place is not None)
        else:
            assert not outcome.leaves


def test_what_is_accepted_is_what_was_asked_for() -> None:
    for evidence in ALL:
        assert judge(evidence, NOTHING) is not Outcome.ACCEPTED
        if judge(evidence, SPIKES) is Outcome.ACCEPTED:
            assert evidence.again is Kind.SPIKE
        if judge(evidence, NOTHING) is Outcome.FAILED:
            assert judge(evidence, EVERYTHING) is Outcome.ACCEPTED


@pytest.mark.parametrize(
    ("run", "found"),
    [
        ([Seen([1.0, 2.0]), Seen([1.0, 2.0])], None),
        ([Seen([1.0, 2.0]), Seen([1.0, NAN])], (Kind.NAN, 1, 1)),
        ([Seen([1.0, NAN]), Seen([-INF, 2.0])], (Kind.INF, 1, 0)),
        ([Seen([1.0, -30.0]), Seen([1.0, 2.0])], (Kind.SPIKE, 0, 1)),
        ([Seen([1.0], 3), Seen([1.0], 3)], (Kind.GRADIENTS, None, None)),
        ([Seen([1.0], 3), Seen([1.0])], (Kind.GRADIENTS, 0, None)),
        ([Seen([1.0] * 2, 3), Seen([1.0] * 2, 3, [1])], (Kind.GRADIENTS, 1, 1)),
        ([Seen([1.0], 3), Seen([NAN], 3)], (Kind.NAN, 1, 0)),
    ],
)
def test_the_first_suspect_result_is_named(run: list[Seen], found: tuple[Kind, int, int] | None) -> None:
    checks = Checks(limit=20.0)
    finding = find(run, checks)
    assert found == (finding and (finding.kind, finding.rank, finding.micro_batch))
    assert any(checks.any_bad(seen.losses) or seen.gradients for seen in run) == (found is not None)


def test_what_is_not_checked_is_not_found() -> None:
    assert find([Seen([NAN], 5)], Checks(loss=False, gradients=False)) is None
    assert find([Seen([NAN], 5)], Checks(loss=False)) is not None
    assert find([Seen([NAN, 30.0])], Checks(loss=False, limit=20.0)) == Finding(Kind.SPIKE, 0, 1, 30.0)


@given(NUMBERS, NUMBERS)
def test_a_difference_is_a_distance(one: float, other: float) -> None:
    assert difference(one, one) == 0
    assert difference(one, other) == difference(other, one) >= 0
    assert (difference(one, other) == 0) == (one == other or (math.isnan(one) and math.isnan(other)))


@given(st.lists(NUMBERS, max_size=4), st.floats(0, 1))
def test_a_run_equals_itself_and_no_run_of_another_shape(losses: list[float], tolerance: float) -> None:
    run = [Seen(losses, 2), Seen(losses)]
    assert equal(run, [Seen(list(losses), 2), Seen(list(losses))], tolerance)
    assert not equal(run, run[:1], tolerance)
    assert not equal(run, [Seen([*losses, 1.0], 2), Seen(losses)], tolerance)
    assert not equal(run, [Seen(losses, 1), Seen(losses)], tolerance)
    assert math.isfinite(magnitude(run))


def test_a_tolerance_is_relative() -> None:
    assert equal([Seen([100.0])], [Seen([101.0])], 0.01)
    assert not equal([Seen([100.0])], [Seen([101.0])], 0.009)
    assert not equal([Seen([INF])], [Seen([1.0])], 1.0)
