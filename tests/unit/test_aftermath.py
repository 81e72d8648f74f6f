"""The one line that a person reads when the ranks go on after a fault."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from nemo_resiliency_plugins.errors import is_of_a_peer
from nemo_resiliency_plugins.evidence import Sign
from nemo_resiliency_plugins.runtime.aftermath import in_words, tell
from tests.unit.conftest import MakeIdentity

LOST = "RuntimeError: [gloo/pair.cc:537] Read error [10.0.0.1]:9: Connection reset by peer"


def life(rank: int, ended: float, hung: str | None = None, since: float = 80.0, step: int = 12) -> Sign:
    return Sign(rank, f"n{rank}", hung or "step", since, step, 1.0, ended, hung)


def failure(error: str) -> dict[str, object]:
    return {"rank": 3, "node": "n3", "error": error, "code": 1, "at": 99.0}


@pytest.mark.parametrize(
    ("lives", "left", "what"),
    [
        ([life(1, 90, "step"), life(2, 91)], None, "one of ranks 1, 2 on n1, n2 hung in step"),
        ([life(1, 90, "step", 85, step=13), life(2, 91)], None, "rank 2 on n2 hung in step"),
        ([life(2, 95), life(1, 90)], failure(LOST), "rank 1 on n1 was killed"),
        ([life(1, 99.2)], failure("ValueError: no"), "rank 3 on n3 failed: ValueError: no"),
        ([life(1, 200, "step")], failure("ValueError: of an earlier start"), "rank 1 on n1 hung in step"),
        ([], failure(LOST), "rank 3 on n3 failed: RuntimeError: [gloo"),
        ([], None, "the ranks were started before"),
    ],
)
def test_what_happened_and_where(lives: list[Sign], left: dict[str, object] | None, what: str) -> None:
    said = in_words(lives, left, 10, 100.0)
    assert said.startswith(f"started again: {what}")
    assert "all ranks go on from the checkpoint of step 10, " in said


def test_how_soon_they_go_on() -> None:
    said = in_words([life(1, 90)], None, 10, 100.0)
    assert said.endswith("the checkpoint of step 10, 10.0 s later, steps 10 to 12 are done again")
    assert "go on from the begin" in in_words([life(1, 90)], None, None, 100.0)


@pytest.mark.parametrize(
    ("kind", "message", "peer"),
    [
        ("RuntimeError", "Connection closed by peer [127.0.0.1]:1", True),
        ("DistBackendError", "NCCL error: remote process exited or there was a network error", True),
        ("DistNetworkError", "anything", True),
        ("ValueError", "no such batch", False),
        ("RuntimeError", "CUDA error: an illegal memory access was encountered", False),
        ("OutOfMemoryError", "CUDA out of memory", False),
    ],
)
def test_errors_of_a_peer_are_told_from_a_ranks_own(kind: str, message: str, peer: bool) -> None:
    assert is_of_a_peer(kind, message) is peer


class Others:
    """The other ranks of a job: they know of ``repeated``, and one of them tells ``lives``."""

    def __init__(self, repeated: float, lives: list[Sign]) -> None:
        self.repeated, self.lives = repeated, [dataclasses.asdict(each) for each in lives]

    def maximum(self, values: list[float]) -> list[float]:
        return [max(self.repeated, *values)]

    def gather(self, value: Any) -> list[Any]:
        return [value, *self.lives]


def test_a_rank_whose_launcher_knows_of_no_restart_takes_part(
    make_identity: MakeIdentity, caplog: pytest.LogCaptureFixture
) -> None:
    tell(make_identity(0, 2), Others(1.0, [life(1, 90, "step")]), None, 10)  # type: ignore[arg-type]
    assert "started again: rank 1 on n1 hung in step" in caplog.text


def test_a_first_start_says_nothing(make_identity: MakeIdentity, caplog: pytest.LogCaptureFixture) -> None:
    tell(make_identity(0, 2), Others(0.0, []), None, None)  # type: ignore[arg-type]
    assert caplog.text == ""


def test_a_first_start_says_which_checkpoint_it_goes_on_from(
    make_identity: MakeIdentity, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        tell(make_identity(0, 2), Others(0.0, []), None, 60)  # type: ignore[arg-type]
    assert "resumed from the checkpoint of step 60" in caplog.text
