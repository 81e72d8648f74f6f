from __future__ import annotations

import pytest

from nemo_resiliency_plugins.runtime.in_process.faults import Fault, History, decode


def fault(step: int | None = 5, resumed: int | None = None, kind: str = "ValueError at a.py:3", rank: int = 1) -> Fault:
    return Fault(rank, kind, "bad", step, resumed)


def history(*lives: list[Fault], lost: tuple[int, ...] = ()) -> History:
    made = History()
    for number, faults in enumerate(lives):
        made.add(faults, lost=number in lost)
    return made


def raised(error: Exception) -> Exception:
    try:
        raise error
    except type(error) as caught:
        return caught


def test_nothing_is_repeated_before_the_first_fault() -> None:
    assert history().repeated() is None
    assert history([fault()]).repeated() is None
    assert history([]).repeated() is None


def test_the_same_error_in_the_same_step_twice_in_a_row_would_return() -> None:
    assert history([fault()], [fault(rank=0)]).repeated() == fault(rank=0)


@pytest.mark.parametrize(
    "second", [fault(step=6), fault(kind="KeyError at a.py:3"), fault(kind="ValueError at a.py:4")]
)
def test_another_step_kind_or_place_is_another_fault(second: Fault) -> None:
    assert history([fault()], [second]).repeated() is None


def test_a_life_that_ended_otherwise_is_between() -> None:
    assert history([fault()], [], [fault()]).repeated() is None


def test_what_the_others_meet_when_a_rank_is_lost_is_no_repetition() -> None:
    assert history([fault()], [fault()], lost=(1,)).repeated() is None


def test_three_in_a_row_without_a_newer_checkpoint_would_go_on_for_ever() -> None:
    lives = [[fault(step=step, resumed=4)] for step in (5, 7, 6)]
    assert history(*lives[:2]).repeated() is None
    assert history(*lives).repeated() == lives[2][0]


def test_three_in_a_row_with_a_newer_checkpoint_are_progress() -> None:
    lives = [[fault(step=step, resumed=resumed)] for step, resumed in ((5, None), (7, 4), (9, 8))]
    assert history(*lives).repeated() is None


def test_where_no_session_knows_the_step_three_in_a_row_are_enough() -> None:
    lives = [[fault(step=None)]] * 3
    assert history(*lives[:2]).repeated() is None
    assert history(*lives).repeated() == fault(step=None)


def test_a_fault_names_its_kind_and_place_and_survives_its_note() -> None:
    told = Fault.of(raised(ValueError("bad batch")), 1, 5, None)
    assert told.kind.startswith("ValueError at ")
    assert told.kind.endswith(f"{__file__}:{raised.__code__.co_firstlineno + 2}")
    assert decode(told.encode() + fault().encode()) == (told, fault())
    assert decode("") == ()
