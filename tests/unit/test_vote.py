"""Ranks that are threads agree on a last tick, whatever their skew."""

from __future__ import annotations

import dataclasses
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_resiliency_plugins.runtime.preemption import vote as voting
from nemo_resiliency_plugins.runtime.preemption.vote import LocalVote, Vote, VoteError
from tests.harness import wait_for

INTERVAL_S = 0.003
DEADLINE_S = 20.0


class Group:
    """A collective maximum over threads; once a rank is gone it fails, as gloo does."""

    def __init__(self, size: int) -> None:
        self._values: list[list[float]] = [[] for _ in range(size)]
        self._barrier = threading.Barrier(size)

    def leave(self) -> None:
        self._barrier.abort()

    def maximum(self, rank: int, values: list[float]) -> list[float]:
        try:
            self._values[rank] = values
            self._barrier.wait(DEADLINE_S)
            found = [max(column) for column in zip(*self._values, strict=True)]
            self._barrier.wait(DEADLINE_S)
        except threading.BrokenBarrierError as error:
            raise RuntimeError("connection closed by peer") from error
        return found


@dataclasses.dataclass
class Rank:
    number: int
    group: Group
    errors: list[Exception] = dataclasses.field(default_factory=list)
    notices: list[int] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self.vote = Vote(
            lambda values: self.group.maximum(self.number, values),
            noticed=lambda: self.notices.append(self.number),
            broken=self.errors.append,
            interval_s=INTERVAL_S,
        )


def make_ranks(size: int) -> list[Rank]:
    group = Group(size)
    return [Rank(number, group) for number in range(size)]


def close(ranks: list[Rank]) -> None:
    with ThreadPoolExecutor(len(ranks)) as pool:
        list(pool.map(lambda rank: rank.vote.close(together=True), ranks))


@pytest.fixture
def pair() -> Iterator[list[Rank]]:
    ranks = make_ranks(2)
    yield ranks
    close(ranks)


@dataclasses.dataclass
class Training:
    """A loop on every rank: random pauses, and in some steps a collective that needs all."""

    seed: int
    size: int
    steps: int
    noticing: set[int]

    def run(self) -> list[int]:
        """How many steps each rank has done."""
        self.meeting = threading.Barrier(self.size)
        ranks = make_ranks(self.size)
        with ThreadPoolExecutor(self.size) as pool:
            done = list(pool.map(self.loop, ranks))
        close(ranks)
        assert not any(rank.errors for rank in ranks)
        return done

    def loop(self, rank: Rank) -> int:
        draw, shared = random.Random(self.seed * 31 + rank.number), random.Random(self.seed)
        notice_at = draw.randrange(self.steps) if rank.number in self.noticing else None
        for step in range(self.steps):
            if step == notice_at:
                threading.Timer(draw.random() * 0.01, rank.vote.notice).start()
            if rank.vote.tick():
                return step
            time.sleep(draw.choice([0.0, 0.0005, 0.002]))
            if shared.random() < 0.6:
                self.meeting.wait(DEADLINE_S)
        return self.steps


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**32), size=st.integers(2, 5), steps=st.integers(1, 40), noticing=st.sets(st.integers(0, 4))
)
def test_all_ranks_stop_at_the_same_tick(seed: int, size: int, steps: int, noticing: set[int]) -> None:
    assert len(set(Training(seed, size, steps, noticing).run())) == 1


def test_without_a_notice_nobody_stops() -> None:
    assert Training(seed=1, size=3, steps=50, noticing=set()).run() == [50, 50, 50]


def test_a_rank_far_behind_still_stops_with_the_others(pair: list[Rank]) -> None:
    fast, slow = pair
    assert not any(fast.vote.tick() for _ in range(1000))
    slow.vote.notice()
    wait_for(lambda: fast.vote.holding and slow.vote.holding, deadline_s=5)
    assert [slow.vote.tick() for _ in range(1001)] == [False] * 1000 + [True]
    assert fast.vote.tick()
    assert slow.vote.tick()  # and it stays so


def test_every_rank_learns_of_the_notice_once(pair: list[Rank]) -> None:
    pair[1].vote.notice()
    pair[1].vote.notice()
    wait_for(lambda: all(rank.vote.tick() for rank in pair), deadline_s=5)
    assert [rank.notices for rank in pair] == [[0], [1]]


def test_a_notice_from_before_is_known_once_the_vote_has_settled(pair: list[Rank]) -> None:
    pair[0].vote.notice()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda rank: rank.vote.settle(), pair))
    assert [rank.vote.tick() for rank in pair] == [True, True]


def test_ranks_that_end_together_end_their_votes_in_the_same_round(pair: list[Rank]) -> None:
    close(pair)
    for rank in pair:
        assert not rank.vote._thread.is_alive()
        assert not rank.errors
        assert not rank.vote.tick()


def test_a_notice_after_the_last_tick_changes_nothing(pair: list[Rank]) -> None:
    for rank in pair:
        rank.vote.tick()
        rank.vote.notice()
    close(pair)
    assert not any(rank.vote.told for rank in pair)


def test_a_rank_that_is_gone_ends_the_vote_and_holds_nobody(pair: list[Rank]) -> None:
    pair[0].vote.close(together=False)
    pair[0].group.leave()
    wait_for(lambda: pair[1].errors, deadline_s=5)
    pair[1].vote.notice()
    assert not pair[1].vote.tick()


def test_a_rank_that_goes_during_the_decision_releases_the_others_with_an_error(pair: list[Rank]) -> None:
    group, decisions = pair[0].group, iter([True])

    def dies_in_the_decision(values: list[float]) -> list[float]:
        if len(values) == 1 and next(decisions, False):
            group.leave()
        return group.maximum(0, values)

    pair[0].vote._maximum = dies_in_the_decision
    pair[0].vote.notice()
    wait_for(lambda: pair[1].vote.holding, deadline_s=5)
    with pytest.raises(VoteError, match="one of them is gone"):
        pair[1].vote.tick()


def test_a_rank_that_never_answers_is_waited_for_in_bounds(pair: list[Rank], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(voting, "DECISION_LIMIT_S", 0.05)
    answers = threading.Event()
    group = pair[0].group

    def late(values: list[float]) -> list[float]:
        if len(values) == 1:
            answers.wait(DEADLINE_S)
        return group.maximum(0, values)

    pair[0].vote._maximum = late
    pair[0].vote.notice()
    wait_for(lambda: pair[1].vote.holding, deadline_s=5)
    with pytest.raises(VoteError):
        pair[1].vote.tick()
    answers.set()


def test_a_rank_alone_decides_for_itself() -> None:
    vote = LocalVote()
    assert not vote.tick()
    vote.notice()
    assert not vote.told
    assert vote.tick()
    assert vote.told
