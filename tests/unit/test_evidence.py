"""Which processes are still there, and which rank held up the others."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys

import pytest

from nemo_resiliency_plugins import evidence
from nemo_resiliency_plugins.evidence import Hindmost, Sign, one_of
from tests.harness import wait_for

SIGN = Sign(rank=0, node="n0", section="step", since=100.0, step=40, span_s=1.0, ended=110.0, hung="step")


def sign(rank: int, **changes: object) -> Sign:
    return dataclasses.replace(SIGN, rank=rank, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("other", "behind"),
    [
        (sign(1), False),
        (sign(1, step=43, since=100.9), False),  # it tells of new steps once a second
        (sign(1, step=43, since=101.1), True),
        (sign(1, step=39, since=101.1), False),
        (sign(1, section="checkpointing", since=100.1), True),
        (sign(1, section="checkpointing", since=99.9), False),
        (sign(1, section="checkpointing", since=100.1, step=39), False),
    ],
)
def test_a_rank_is_behind_only_where_that_is_certain(other: Sign, behind: bool) -> None:
    assert SIGN.is_behind(other) is behind


def test_one_of_many_is_behind_in_whatever_order_they_tell() -> None:
    ahead = [sign(rank, step=41, since=102.0) for rank in range(50)]
    last = sign(50)
    for order in ([*ahead, last], [last, *ahead], [*ahead[:20], last, *ahead[20:]]):
        found = Hindmost(order)
        assert (found.places, found.are_told_apart, found.section) == ([(50, "n0")], True, "step")


def test_ranks_that_cannot_be_told_apart_are_all_suspects() -> None:
    found = Hindmost([sign(0), sign(1, hung=None, node="n1")])
    assert (one_of(found.places), found.are_told_apart) == ("one of ranks 0, 1 on n0, n1", False)


def test_nobody_has_hung_where_no_limit_was_overrun() -> None:
    assert Hindmost([sign(0, hung=None), sign(1, hung=None)]).hung is None


def test_few_of_many_suspects_are_named() -> None:
    assert one_of([(rank, f"n{rank // 2}") for rank in range(12)]) == (
        "one of ranks 0, 1, 2, 3 and others on n0, n1, n2, n3 and others"
    )
    assert one_of([(7, "")]) == "rank 7"


def test_a_process_is_known_by_its_begin_until_it_has_ended() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    began = evidence.started(process.pid)
    assert began is not None
    assert evidence.started(process.pid) == began
    process.communicate(b"\n")
    assert evidence.started(process.pid) is None


def test_a_process_that_nobody_has_waited_for_has_ended() -> None:
    process = subprocess.Popen(["true"])
    wait_for(lambda: evidence.started(process.pid) is None, what="a zombie")
    assert os.path.exists(f"/proc/{process.pid}")  # noqa: PTH110
    process.wait()


def test_a_machine_is_one_boot_of_one_kernel() -> None:
    there = evidence.machine()
    assert there is not None
    command = [sys.executable, "-c", "from nemo_resiliency_plugins import evidence; print(evidence.machine())"]
    assert subprocess.check_output(command, text=True).strip() == there
