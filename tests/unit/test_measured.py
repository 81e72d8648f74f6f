"""How a recovery is taken apart."""

from __future__ import annotations

import pytest

from tests.benchmarks.measured import Event, Measured, Recoveries


def event(time: float, name: str, **fields: float) -> Event:
    return {"time": time, "event": name, **fields}


EVENTS = [
    event(9.0, "rank_ended"),  # of an earlier fault
    event(11.0, "rank_ended"),
    event(13.0, "rank_ended"),
    event(13.5, "rank_started"),
    event(14.0, "rank_started"),
    event(15.0, "session_started"),
    event(18.0, "resumed", seconds=1.0),
    event(18.5, "first_step"),
    event(30.0, "rank_ended"),  # of a later one
]


def test_each_part_ends_with_the_last_rank() -> None:
    measured = Measured.between(10.0, 19.0, EVENTS)
    assert measured.total_s == 9.0
    assert measured.parts == pytest.approx(
        {
            "first rank gone": 1.0,
            "all gone": 2.0,
            "ranks started": 1.0,
            "imports": 1.0,
            "set-up": 2.0,
            "load": 1.0,
            "first step": 0.5,
        }
    )


def test_a_batch_script_that_starts_again_is_a_part() -> None:
    measured = Measured.between(10.0, 19.0, [*EVENTS, event(13.25, "batch_started")])
    assert measured.parts["batch script"] == 0.25
    assert measured.parts["ranks started"] == 0.75


def test_a_rank_that_was_ahead_of_the_others_takes_no_time() -> None:
    measured = Measured.between(10.0, 19.0, [event(14.0, "rank_started"), event(13.0, "session_started")])
    assert measured.parts == {"ranks started": 4.0, "imports": 0.0}


def test_of_several_runs_the_median_of_each_part_is_told() -> None:
    recoveries = Recoveries()
    recoveries.add("kill", [Measured(total, {"load": total / 2}) for total in (1.0, 9.0, 2.0)])
    assert recoveries.found == {"kill": [1.0, 9.0, 2.0]}
    assert recoveries.parts == {"kill": {"load": 1.0}}
