"""What counts as a spike, step by step."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_resiliency_plugins.runtime.rerun.window import FEWEST, LossWindow

LOSSES = st.floats(min_value=-1e6, max_value=1e6, allow_subnormal=False)


def window(*, factor: float = 3.0, warmup: int = 0, size: int = 100) -> LossWindow:
    return LossWindow(size=size, warmup=warmup, factor=factor)


def filled(losses: list[float], **fields: float) -> LossWindow:
    filling = window(**fields)  # type: ignore[arg-type]
    for step, loss in enumerate(losses):
        filling.add(step, loss)
    return filling


def spikes(losses: list[float], **fields: float) -> list[int]:
    """The steps whose loss is a spike; those are not added."""
    looking = window(**fields)  # type: ignore[arg-type]
    found = []
    for step, loss in enumerate(losses):
        if abs(loss) > looking.limit(step):
            found.append(step)
        else:
            looking.add(step, loss)
    return found


def test_a_falling_loss_is_no_spike_and_one_five_times_as_large_is() -> None:
    falling = [2.0 + 9.0 * 0.8**step for step in range(40)]
    assert spikes(falling, warmup=20) == []
    falling[35] = 5 * falling[34]
    assert spikes(falling, warmup=20) == [35]


def test_nothing_is_a_spike_during_the_warm_up() -> None:
    losses = [2.0] * 30
    losses[5] = losses[19] = 1e9
    assert spikes(losses, warmup=20) == []
    assert window(warmup=20).limit(19) == math.inf


def test_the_losses_of_the_warm_up_do_not_hide_a_later_spike() -> None:
    assert spikes([50.0] * 10 + [1.0] * 10 + [4.0], warmup=10) == [20]


def test_a_spike_that_leaves_the_window_is_forgotten() -> None:
    assert filled([9.0] + [1.0] * 5, size=5).limit(6) == 3.0
    assert filled([9.0] + [1.0] * 4, size=5).limit(6) == 27.0


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_negative_losses_are_compared_by_their_magnitude(sign: float) -> None:
    assert spikes([sign * 2.0] * 10 + [sign * 5.9, sign * 6.1, -sign * 60.0]) == [12]


def test_zero_losses_give_no_limit_and_are_no_spike() -> None:
    assert spikes([0.0] * 10 + [5.0]) == []
    assert spikes([0.0] * 10 + [5.0] * 3 + [0.0, 16.0]) == [14]


def test_a_window_that_is_shorter_than_the_fewest_need_only_be_full() -> None:
    assert filled([1.0], size=1).limit(1) == 3.0
    assert filled([1.0] * (FEWEST - 1)).limit(FEWEST) == math.inf


def test_nan_and_inf_do_not_get_into_the_window() -> None:
    assert filled([1.0] * FEWEST + [math.nan, math.inf, -math.inf]).limit(50) == 3.0


@given(st.lists(LOSSES, max_size=30), LOSSES.filter(lambda factor: factor > 1))
def test_what_is_not_above_the_largest_of_the_window_is_never_a_spike(losses: list[float], factor: float) -> None:
    limit = filled(losses, factor=factor, size=30).limit(100)
    assert all(abs(loss) <= limit for loss in losses)
    assert limit > 0


@given(st.lists(LOSSES, max_size=30), st.integers(1, 30), st.integers(0, 30))
def test_a_state_that_is_put_back_gives_the_same_limit(losses: list[float], size: int, warmup: int) -> None:
    before = filled(losses, size=size, warmup=warmup)
    after = window(size=size, warmup=warmup)
    after.load_state_dict(before.state_dict())
    assert after.limit(40) == before.limit(40)


@given(st.lists(LOSSES, min_size=FEWEST, max_size=30), st.floats(1e-3, 1e3))
def test_the_unit_of_the_loss_does_not_matter(losses: list[float], unit: float) -> None:
    scaled = filled([loss * unit for loss in losses]).limit(99)
    assert scaled == pytest.approx(filled(losses).limit(99) * unit)


def test_another_size_of_the_window_takes_the_newest_of_what_was_kept() -> None:
    after = window(size=5)
    after.load_state_dict(filled([9.0, 9.0, 9.0, 1.0, 1.0, 1.0, 1.0, 1.0]).state_dict())
    assert after.limit(9) == 3.0
    after.load_state_dict({})
    assert after.limit(9) == math.inf
