from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_resiliency_plugins.config import FaultToleranceConfig
from nemo_resiliency_plugins.runtime import timeouts
from nemo_resiliency_plugins.runtime.learning import Learner
from nemo_resiliency_plugins.runtime.timeouts import BadState, Policy, Seen

POLICY = Policy(factor=5.0, floor_s=30.0)
CONFIGURED = {"setup": 600.0, "step": 300.0, "out_of_section": None}
SECTIONS = {"setup", "step"}

SEEN = st.builds(Seen, st.integers(0, 10**9), st.floats(0.0, 1e7, allow_nan=False), st.integers(0, 60))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
    max_leaves=8,
)


def content(**changes: object) -> dict[str, object]:
    entry = {"samples": 20, "longest_s": 1.0, "doublings": 0}
    return {"format": 1, "world_size": 2, "seen": {"step": entry}, "limits_s": {"step": 5.0}, **changes}


def entry(**changes: object) -> dict[str, object]:
    return {"step": {"samples": 20, "longest_s": 1.0, "doublings": 0, **changes}}


def load(path: Path) -> dict[str, Seen]:
    return dict(timeouts.load(path, world_size=2, sections=SECTIONS))


def alone(values: list[float]) -> list[float]:
    return values


def learner(**changes: object) -> Learner:
    config = FaultToleranceConfig(calc_ft_timeouts=True, **changes)  # type: ignore[arg-type]
    return Learner(config, CONFIGURED, writes=True, world_size=1)


def test_a_learned_limit_is_the_longest_time_times_the_factor() -> None:
    assert POLICY.limit(300.0, Seen(16, 20.0)) == 100.0


def test_few_samples_teach_nothing() -> None:
    assert POLICY.limit(300.0, Seen(15, 20.0)) == 300.0
    assert POLICY.limit(None, Seen(15, 20.0)) is None


def test_no_learned_limit_is_below_the_floor() -> None:
    assert POLICY.limit(300.0, Seen(100, 0.001)) == 30.0


def test_a_section_without_a_limit_gets_a_learned_one() -> None:
    assert POLICY.limit(None, Seen(16, 20.0)) == 100.0


def test_each_hang_kill_doubles_the_learned_limit() -> None:
    seen = Seen(16, 20.0)
    assert POLICY.limit(300.0, seen.doubled()) == 200.0
    assert POLICY.limit(300.0, seen.doubled().doubled()) == 300.0


@given(st.floats(0.001, 1e6), SEEN, st.integers(0, 3000))
def test_no_learned_limit_is_above_the_configured_one(configured: float, seen: Seen, kills: int) -> None:
    for _ in range(kills):
        seen = seen.doubled()
    limit = POLICY.limit(configured, seen)
    assert limit is not None
    assert 0 < limit <= configured


@given(SEEN, SEEN, SEEN)
def test_merging_is_commutative_and_associative(first: Seen, second: Seen, third: Seen) -> None:
    assert first.merged(second) == second.merged(first)
    assert first.merged(second).merged(third) == first.merged(second.merged(third))


@given(st.dictionaries(st.sampled_from(sorted(SECTIONS)), SEEN), st.dictionaries(st.just("step"), st.floats(0.1, 1e6)))
def test_a_saved_state_is_loaded_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, seen: dict[str, Seen], limits: dict[str, float]
) -> None:
    path = tmp_path_factory.mktemp("state") / timeouts.FILE_NAME
    timeouts.save(path, world_size=2, seen=seen, limits=limits)
    assert load(path) == seen


def test_no_state_is_an_empty_one(tmp_path: Path) -> None:
    assert load(tmp_path / timeouts.FILE_NAME) == {}


BAD = {
    "empty": b"",
    "half": json.dumps(content()).encode()[:50],
    "binary": bytes(range(256)),
    "list": b"[]",
    "number": b"7",
    "deep": b"[" * 100_000,
    "other format": content(format=2),
    "other world size": content(world_size=8),
    "no world size": {"format": 1, "seen": {}, "limits_s": {}},
    "unknown section": content(seen={"lunch": entry()["step"]}),
    "unknown limit": content(limits_s={"lunch": 5.0}),
    "NaN time": content(seen=entry(longest_s=float("nan"))),
    "infinite time": content(seen=entry(longest_s=float("inf"))),
    "huge time": content(seen=entry(longest_s=10**400)),
    "negative time": content(seen=entry(longest_s=-1.0)),
    "text as time": content(seen=entry(longest_s="1")),
    "bool as time": content(seen=entry(longest_s=True)),
    "negative samples": content(seen=entry(samples=-1)),
    "fractional samples": content(seen=entry(samples=1.5)),
    "endless doublings": content(seen=entry(doublings=10**6)),
    "unknown field": content(seen=entry(mood="good")),
    "list of sections": content(seen=[]),
    "zero limit": content(limits_s={"step": 0}),
    "NaN limit": content(limits_s={"step": float("nan")}),
    "negative limit": content(limits_s={"step": -5.0}),
    "text as limit": content(limits_s={"step": "5"}),
    "limits missing": {"format": 1, "world_size": 2, "seen": {}},
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_state_is_refused_with_a_reason(tmp_path: Path, name: str) -> None:
    path, bad = tmp_path / timeouts.FILE_NAME, BAD[name]
    path.write_bytes(bad if isinstance(bad, bytes) else json.dumps(bad).encode())
    with pytest.raises(BadState, match=r"\w"):
        load(path)


def test_an_unreadable_state_is_refused_with_a_reason(tmp_path: Path) -> None:
    with pytest.raises(BadState, match="unreadable"):
        load(tmp_path)


@given(JSON | st.fixed_dictionaries({"format": st.just(1), "world_size": st.just(2), "seen": JSON, "limits_s": JSON}))
def test_no_json_gets_past_the_check_and_breaks_a_limit(tmp_path_factory: pytest.TempPathFactory, bad: object) -> None:
    path = tmp_path_factory.mktemp("state") / timeouts.FILE_NAME
    path.write_text(json.dumps(bad))
    try:
        seen = load(path)
    except BadState:
        return
    assert all(POLICY.limit(300.0, known) for known in seen.values())


@given(st.binary(max_size=60))
def test_no_bytes_get_past_the_check(tmp_path_factory: pytest.TempPathFactory, bad: bytes) -> None:
    path = tmp_path_factory.mktemp("state") / timeouts.FILE_NAME
    path.write_bytes(bad)
    with pytest.raises(BadState):
        load(path)


def test_what_one_start_learns_holds_in_the_next(tmp_path: Path) -> None:
    first = learner()
    first.start(tmp_path, None, alone)
    assert first.update({"step": Seen(16, 10.0)}, alone)["step"] == 50.0
    assert learner().start(tmp_path, None, alone) == {"setup": 600.0, "step": 50.0, "out_of_section": None}


def test_a_limit_that_killed_is_doubled_at_the_next_start_only(tmp_path: Path) -> None:
    first = learner()
    first.start(tmp_path, None, alone)
    first.update({"step": Seen(16, 10.0)}, alone)
    assert learner().start(tmp_path, "step", alone)["step"] == 100.0
    assert learner().start(tmp_path, None, alone)["step"] == 100.0


def test_the_slowest_rank_decides(tmp_path: Path) -> None:
    def with_a_slower_rank(values: list[float]) -> list[float]:
        return [max(value, 40.0) for value in values]

    assert learner().update({"step": Seen(16, 1.0)}, with_a_slower_rank)["step"] == 200.0


def test_a_state_that_cannot_be_written_is_a_warning_that_names_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / timeouts.FILE_NAME).mkdir()
    known = learner()
    known.start(tmp_path, None, alone)
    assert known.update({"step": Seen(16, 10.0)}, alone)["step"] == 50.0
    assert str(tmp_path / timeouts.FILE_NAME) in caplog.text
