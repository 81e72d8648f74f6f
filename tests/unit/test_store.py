from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nemo_resiliency_plugins.errors import CheckpointError
from nemo_resiliency_plugins.runtime.checkpoint import checksums
from nemo_resiliency_plugins.runtime.checkpoint.store import CheckpointStore, require_resumable


def store(root: Path, keep: int = 2) -> CheckpointStore:
    return CheckpointStore(root, keep=keep)


def commit(target: CheckpointStore, step: int, **options: Any) -> None:
    target.commit(step, checksums.of_files(target.path(step).glob("data*")), world_size=4, **options)


def write(target: CheckpointStore, *steps: int) -> None:
    for step in steps:
        target.prepare(step)
        (target.path(step) / "data").write_text(f"{step}")
        commit(target, step)


def test_an_empty_or_missing_directory_holds_no_checkpoint(tmp_path: Path) -> None:
    for root in (tmp_path, tmp_path / "missing"):
        assert store(root).committed() == []
        assert store(root).newest_whole() == (None, [])


def test_a_checkpoint_exists_when_it_is_committed(tmp_path: Path) -> None:
    target = store(tmp_path)
    target.prepare(5)
    (target.path(5) / "data").write_text("5")
    assert target.committed() == []
    commit(target, 5)
    assert target.committed() == [5]
    assert target.manifest(5)["world_size"] == 4


def test_the_pointer_names_the_newest(tmp_path: Path) -> None:
    write(store(tmp_path), 5, 10)
    assert (tmp_path / "latest").read_text() == "step_000000010\n"


def test_retention_keeps_the_newest_committed_ones(tmp_path: Path) -> None:
    write(store(tmp_path, keep=2), 5, 10, 15)
    assert store(tmp_path).committed() == [10, 15]
    assert not store(tmp_path).path(5).exists()


def test_leftovers_do_not_count_for_retention(tmp_path: Path) -> None:
    target = store(tmp_path, keep=2)
    write(target, 5)
    target.prepare(7)
    write(target, 10)
    assert target.committed() == [5, 10]


def test_retention_never_removes_what_was_just_committed(tmp_path: Path) -> None:
    target = store(tmp_path, keep=1)
    write(target, 20)
    (target.path(20) / "data").unlink()
    write(target, 15)
    assert target.newest_whole()[0] == 15


def test_retention_does_not_count_what_cannot_be_loaded(tmp_path: Path) -> None:
    target = store(tmp_path, keep=1)
    write(target, 20)
    target.prepare(15)
    commit(target, 15, unreadable={20: "the reason"})
    assert target.committed() == [15, 20]
    target.prepare(17)
    commit(target, 17, unreadable={20: "the reason"})
    assert target.committed() == [17, 20]


def test_the_pointer_never_names_what_is_being_replaced(tmp_path: Path) -> None:
    write(store(tmp_path), 5)
    store(tmp_path).prepare(5)
    assert store(tmp_path).pointer() is None


def test_the_marker_of_another_checkpoint_is_none(tmp_path: Path) -> None:
    target = store(tmp_path)
    write(target, 5)
    target.path(5).rename(target.path(6))
    step, [problem] = target.newest_whole()
    assert step is None
    assert "that of another checkpoint" in problem


def test_a_leftover_is_replaced_with_a_note(tmp_path: Path) -> None:
    target = store(tmp_path)
    assert target.prepare(5) is None
    assert target.leftovers() == [5]
    (target.path(5) / "half").write_text("x")
    note = target.prepare(5)
    assert note is not None
    assert str(target.path(5)) in note
    assert list(target.path(5).iterdir()) == []


@pytest.mark.parametrize("damage", ["shorter", "longer", "missing", "marker", "manifest"])
def test_a_damaged_checkpoint_is_passed_over_with_a_reason(tmp_path: Path, damage: str) -> None:
    target = store(tmp_path)
    write(target, 5, 10)
    data = target.path(10) / "data"
    effects = {"shorter": "1", "longer": "10 and more"}
    if damage in effects:
        data.write_text(effects[damage])
    elif damage == "missing":
        data.unlink()
    elif damage == "marker":
        (target.path(10) / "COMMITTED").write_text("{")
    else:
        manifest = target.path(10) / "manifest.json"
        manifest.write_text(manifest.read_text().replace("4", "2"))
    step, problems = target.newest_whole()
    assert step == 5
    assert len(problems) == 1
    assert str(target.path(10)) in problems[0]


def test_other_names_are_left_alone(tmp_path: Path) -> None:
    for name in ("step_5", "step_000000005.tmp", "notes"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "COMMITTED").write_text("{}")
    write(store(tmp_path, keep=1), 10, 15)
    assert store(tmp_path).committed() == [15]
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 4


def test_steps_beyond_nine_digits_are_found(tmp_path: Path) -> None:
    write(store(tmp_path), 10**10)
    assert store(tmp_path).committed() == [10**10]


def test_starting_over_where_checkpoints_were_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"the reason.*empty directory"):
        require_resumable(tmp_path, None, ["the reason"])


def test_starting_fresh_or_falling_back_is_none(tmp_path: Path) -> None:
    require_resumable(tmp_path, None, [])
    require_resumable(tmp_path, 5, ["the reason"])


def test_what_a_failed_save_has_left_is_discarded_and_nothing_else(tmp_path: Path) -> None:
    target = store(tmp_path)
    write(target, 5)
    target.prepare(7)
    assert target.discard(7) > 0
    target.discard(5)
    assert [path.name for path in tmp_path.glob("step_*")] == [target.path(5).name]
