"""What is resumed: the same bits on as many ranks, the same values on fewer or more, and all ranks together."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest

from nemo_resiliency_plugins.runtime.checkpoint.store import CheckpointStore
from tests.ranks import Group, run
from tests.training import Options, train, whole_digest

SHARDED = pytest.mark.parametrize("sharded", [False, True], ids=["settled DDP", "FSDP2"])
ASYNC = {"async_save": "true"}


def final(group: Group, ranks: int) -> list[str]:
    return [group.notes(rank)[-1].text for rank in range(ranks)]


def resumed(group: Group, rank: int = 0) -> list[int]:
    return [note.step for note in group.notes(rank) if note.what == "resumed"]


@SHARDED
def test_four_ranks_go_on_bit_for_bit(tmp_path: Path, sharded: bool) -> None:
    options = partial(Options, every=4, sharded=sharded, checkpoint=ASYNC)
    expected = run(tmp_path / "undisturbed", 4, train, options(steps=12))
    for steps in (4, 12):
        cut = run(tmp_path / "cut", 4, train, options(steps=steps))
    assert resumed(cut) == [0, 4]
    assert final(cut, 4) == final(expected, 4)


@SHARDED
def test_four_ranks_two_ranks_and_four_again_hold_the_same_values(tmp_path: Path, sharded: bool) -> None:
    for ranks, steps in ((4, 4), (2, 8), (4, 8)):
        group = run(tmp_path, ranks, whole_digest, Options(steps=steps, every=4, sharded=sharded, checkpoint=ASYNC))
    wholes = [(note.what, note.step, note.text) for note in group.notes(0) if note.what in ("from", "to")]
    (_, _, after_4), (_, _, from_4), (_, _, after_8), (_, _, from_8) = wholes[1:5]
    assert [step for what, step, _ in wholes if what == "from"] == [0, 4, 8]
    assert (after_4, after_8) == (from_4, from_8)


def test_keys_that_come_later_are_saved_and_loaded(tmp_path: Path) -> None:
    options = partial(Options, every=2, extra_from=5, checkpoint=ASYNC)
    for steps in (6, 8):
        group = run(tmp_path, 2, train, options(steps=steps))
    assert [note.text for note in group.notes(1) if note.what == "extra"] == ["count", "count,more"]


@pytest.mark.parametrize("name", ["__1_0.distcp", ".metadata", "manifest.json", "COMMITTED"])
def test_damage_is_skipped_by_all_ranks_with_a_warning_that_names_it(tmp_path: Path, trained: Path, name: str) -> None:
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    path = CheckpointStore(tmp_path / "checkpoints", keep=2).path(4)
    content = bytearray((path / name).read_bytes())
    content[len(content) // 2] ^= 1
    (path / name).write_bytes(content)
    group = run(tmp_path, 2, train, Options(steps=2, every=0))
    assert [resumed(group, rank)[-1] for rank in (0, 1)] == [2, 2]
    warning = next(line for line in group.log.splitlines() if "skipped a checkpoint" in line)
    assert str(path if name in ("manifest.json", "COMMITTED") else path / name) in warning


def test_nothing_left_is_an_error_unless_starting_over_was_asked_for(tmp_path: Path, trained: Path) -> None:
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    for path in (tmp_path / "checkpoints").glob("step_*/.metadata"):
        path.write_bytes(b"\0" * path.stat().st_size)
    with pytest.raises(AssertionError, match="can be resumed from"):
        run(tmp_path, 2, train, Options(steps=6))
    group = run(tmp_path, 2, train, Options(steps=6, checkpoint={"start_over": "true"}))
    assert resumed(group)[-1] == 0
    assert "starts over at step 0" in group.log
    assert resumed(run(tmp_path, 2, train, Options(steps=6)))[-1] == 6


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a training with checkpoints of the steps 2 and 4."""
    root = tmp_path_factory.mktemp("trained")
    run(root, 2, train, Options(steps=4))
    return root
