"""The simulation behind the goodput figures."""

from __future__ import annotations

import itertools
import math

import pytest

from tests.benchmarks.goodput import Failures, Stack, drawn, goodput, simulate, young_s

STACK = Stack({"crash": 30.0, "hang": 100.0, "node": 200.0}, stall_s=1.0, durable_s=10.0)


def scripted(*failures: tuple[float, str]) -> Failures:
    return itertools.chain(failures, itertools.repeat((math.inf, "crash")))


def test_without_failures_only_the_stalls_are_lost() -> None:
    assert simulate(1000.0, scripted(), STACK, 100.0) == 1000.0 + 9 * 1.0


def test_a_failure_costs_its_recovery_and_the_work_since_the_safe_checkpoint() -> None:
    undisturbed = simulate(1000.0, scripted(), STACK, 100.0)
    # At 250 s: two saves before, at 100 and 201 s, the second safe since 212 s; 48 s of work after it.
    assert simulate(1000.0, scripted((250.0, "crash")), STACK, 100.0) == pytest.approx(undisturbed + 30.0 + 48.0)


def test_a_checkpoint_that_was_not_yet_safe_does_not_count() -> None:
    undisturbed = simulate(1000.0, scripted(), STACK, 100.0)
    # At 205 s the save of 200 s of work is 3 s old: 103 s of work are lost, and a stall.
    assert simulate(1000.0, scripted((205.0, "crash")), STACK, 100.0) == pytest.approx(undisturbed + 30.0 + 104.0)


def test_a_failure_during_a_recovery_starts_it_again() -> None:
    once = simulate(1000.0, scripted((250.0, "hang")), STACK, 100.0)
    twice = simulate(1000.0, scripted((250.0, "hang"), (40.0, "crash")), STACK, 100.0)
    assert twice == pytest.approx(once - 100.0 + 40.0 + 30.0)


def test_a_seed_gives_the_same_failures() -> None:
    first, second, other = ([*itertools.islice(drawn(100.0, seed), 5)] for seed in (1, 1, 2))
    assert first == second != other


def test_goodput_falls_with_the_failure_rate() -> None:
    shares = [goodput(STACK, mttf_s) for mttf_s in (100_000.0, 10_000.0, 1_000.0)]
    assert 1.0 > shares[0] > shares[1] > shares[2] > 0.0


def test_checkpoints_are_not_written_faster_than_they_become_safe() -> None:
    assert young_s(2.0, 10_000.0) == 200.0
    assert young_s(2.0, 10_000.0, 300.0) == 300.0
