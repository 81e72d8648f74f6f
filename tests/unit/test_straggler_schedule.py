"""When ranks report: after the same step, about when the interval is over, and with few collectives."""

from __future__ import annotations

import pytest

from nemo_resiliency_plugins.runtime.stragglers.schedule import Schedule


class Ranks:
    """Steps of the given length on a clock of their own; each look of a rank is noted."""

    def __init__(self) -> None:
        self.now, self.looks = 0.0, 0

    def maximum(self, values: list[float]) -> list[float]:
        self.looks += 1
        return values

    def reports(self, schedule: Schedule, step_s: float, steps: int) -> list[float]:
        """Seconds at which the schedule says to report."""
        found = []
        for _ in range(steps):
            self.now += step_s
            if schedule.step_ends():
                found.append(self.now)
        return found


@pytest.mark.parametrize("step_s", [0.01, 0.3, 7.0])
def test_reports_come_at_the_interval(step_s: float) -> None:
    ranks = Ranks()
    schedule = Schedule(300.0, ranks.maximum, clock=lambda: ranks.now)
    found = ranks.reports(schedule, step_s, int(1500 / step_s))
    gaps = [after - before for before, after in zip([0.0, *found], found, strict=False)]
    assert len(found) in (4, 5)
    assert all(abs(gap - 300.0) <= step_s for gap in gaps)
    assert ranks.looks <= 80 * (len(found) + 1)


def test_an_interval_has_as_many_steps_as_it_needs() -> None:
    ranks = Ranks()
    schedule = Schedule(1.0, ranks.maximum, fewest=5, clock=lambda: ranks.now)
    assert ranks.reports(schedule, 2.0, 12) == [10.0, 20.0]


def test_steps_longer_than_the_interval_each_bring_a_report() -> None:
    ranks = Ranks()
    schedule = Schedule(1.0, ranks.maximum, clock=lambda: ranks.now)
    assert len(ranks.reports(schedule, 5.0, 12)) >= 10


@pytest.mark.parametrize("factor", [3, 10, 100, 1000])
def test_steps_that_become_longer_delay_a_report_by_some_of_them(factor: int) -> None:
    ranks = Ranks()
    schedule = Schedule(300.0, ranks.maximum, clock=lambda: ranks.now)
    ranks.reports(schedule, 0.1, 4000)
    changed = ranks.now
    [first, *_] = ranks.reports(schedule, 0.1 * factor, 4000)
    assert first - changed <= 300.0 + 51 * 0.1 * factor


def test_trivial_steps_at_the_begin_put_no_report_off() -> None:
    ranks = Ranks()
    schedule = Schedule(300.0, ranks.maximum, fewest=5, clock=lambda: ranks.now)
    ranks.reports(schedule, 2e-5, 5)
    [first, *_] = ranks.reports(schedule, 1.0, 1000)
    assert first <= 310.0
