from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_resiliency_plugins.runtime.sections import SectionClock
from nemo_resiliency_plugins.runtime.timeouts import Seen


@dataclasses.dataclass
class Bench:
    """A clock that is set by hand, and a monitor that remembers what it was told."""

    warmup_steps: int = 0
    span_s: float = 1.0
    now: float = 100.0
    told: list[tuple[str, str]] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = SectionClock(self, warmup_steps=self.warmup_steps, span_s=self.span_s, clock=lambda: self.now)

    def changed(self, previous: str, current: str) -> None:
        self.told.append((previous, current))

    def steps(self, *seconds: float) -> None:
        for duration in seconds:
            self.clock.step_begins()
            self.now += duration
            self.clock.step_ends()

    @property
    def opened(self) -> list[str]:
        return [current for _, current in self.told]


def test_short_steps_share_a_section_until_the_span_is_over() -> None:
    bench = Bench(span_s=1.0)
    bench.steps(*[0.3] * 5)
    assert bench.opened == ["step", "step"]


def test_long_steps_each_have_a_section() -> None:
    bench = Bench()
    bench.steps(2.0, 2.0, 2.0)
    assert bench.opened == ["step"] * 3


def test_the_first_steps_are_set_up() -> None:
    bench = Bench(warmup_steps=2)
    bench.steps(5.0, 5.0, 5.0)
    assert bench.opened == ["setup", "setup", "step"]


def test_the_end_of_the_loop_leaves_every_section() -> None:
    bench = Bench()
    bench.steps(0.1)
    bench.clock.loop_ends()
    bench.clock.loop_ends()
    assert bench.told == [("out_of_section", "step"), ("step", "out_of_section")]


def test_after_a_block_the_surrounding_section_starts_anew() -> None:
    bench = Bench()
    bench.steps(0.1)
    with bench.clock.within("checkpointing"):
        assert bench.clock.current == "checkpointing"
    assert bench.told[-2:] == [("step", "checkpointing"), ("checkpointing", "step")]


def test_an_error_in_a_block_restores_the_surrounding_section() -> None:
    bench = Bench()
    bench.clock.open("setup")
    with pytest.raises(LookupError), bench.clock.within("evaluation"):
        raise LookupError
    assert bench.clock.current == "setup"


def test_each_step_is_a_sample_though_sections_span_several() -> None:
    bench = Bench(span_s=10.0)
    bench.steps(0.25, 0.5, 0.25)
    bench.clock.loop_ends()
    assert bench.clock.seen["step"] == Seen(3, 0.5)


def test_the_time_in_a_block_is_not_that_of_its_step() -> None:
    bench = Bench()
    bench.clock.step_begins()
    bench.now += 0.5
    with bench.clock.within("evaluation"):
        bench.now += 50.0
    bench.now += 0.25
    bench.clock.step_ends()
    assert bench.clock.seen["step"] == Seen(1, 0.5)
    assert bench.clock.seen["evaluation"] == Seen(1, 50.0)


def test_a_pause_leaves_no_trace() -> None:
    bench = Bench()
    bench.clock.step_begins()
    with bench.clock.within("out_of_section", samples=None):
        bench.now += 1000.0
    bench.clock.step_ends()
    assert {name: seen.longest_s for name, seen in bench.clock.seen.items()} == {"out_of_section": 0.0, "step": 0.0}


def test_steps_are_learned_though_each_is_followed_by_a_checkpoint() -> None:
    bench = Bench()
    for _ in range(3):
        bench.steps(0.5)
        with bench.clock.within("checkpointing"):
            bench.now += 2.0
    assert bench.clock.seen["step"] == Seen(3, 0.5)


def test_warmup_steps_show_how_long_setup_takes_but_not_how_often_it_was_seen() -> None:
    bench = Bench(warmup_steps=3)
    bench.clock.open("setup")
    bench.now += 2.0
    bench.steps(7.0, 1.0, 1.0, 0.1)
    assert bench.clock.seen["setup"] == Seen(1, 7.0)


@given(st.lists(st.floats(0.001, 5.0), max_size=40), st.integers(0, 5), st.floats(0.0, 3.0))
def test_sections_are_closed_before_others_open(durations: list[float], warmup_steps: int, span_s: float) -> None:
    bench = Bench(warmup_steps, span_s)
    bench.steps(*durations)
    bench.clock.loop_ends()
    before = ["out_of_section", *bench.opened]
    assert [previous for previous, _ in bench.told] == before[:-1]
    assert bench.clock.current == "out_of_section"
