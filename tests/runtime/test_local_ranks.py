"""The local tier on two nodes of two ranks: what is lost or damaged there, and which tier is resumed from."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from nemo_resiliency_plugins.contract import Attempt, progress_path
from nemo_resiliency_plugins.runtime.checkpoint.store import CheckpointStore
from tests.harness import JOB_ID, wait_for
from tests.ranks import Group, run, started
from tests.runtime.conftest import ASYNC, BY_MODE, MODES
from tests.training import Options, train

LOCAL = {"non_persistent_save_interval": 3}


def options(root: Path, steps: int, **fields: object) -> Options:
    checkpoint = {**LOCAL, **fields.pop("checkpoint", {})}  # type: ignore[dict-item]
    local = str(root / "local-{node}")
    return Options(**{"steps": steps, "every": 4, "local": local, "checkpoint": checkpoint, **fields})  # type: ignore[arg-type]


def cut(root: Path, **fields: object) -> Group:
    """Four ranks train and are lost in step 7: the global tier has step 4, the local one step 6."""
    fields = {"sharded": True, "stop_at": 7, **fields}
    with started(root, 4, train, options(root, 99, **fields)) as group:
        wait_for(lambda: all(group.notes(rank)[-1:] and group.notes(rank)[-1].what == "stopped" for rank in range(4)))
        wait_for(lambda: len([e for e in group.events("checkpoint") if e["tier"] == "local" and e["step"] == 6]) == 4)
        group.kill()
    return group


def resumed(group: Group, rank: int) -> tuple[int, str]:
    note = [note for note in group.notes(rank) if note.what == "resumed"][-1]
    return note.step, note.text


def expected(group: Group, rank: int, step: int) -> tuple[int, str]:
    return next((note.step, note.text) for note in group.notes(rank) if (note.what, note.step) == ("step", step))


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def shard(root: Path, node: int, rank: int) -> Path:
    [path] = root.glob(f"local-{node}/*/step_*/rank{rank:05d}.pt")
    return path


def nothing(root: Path) -> None:
    """The nodes keep all they had."""


def lose_node(root: Path, node: int = 1) -> None:
    shutil.rmtree(root / f"local-{node}")


def damage_original(root: Path) -> None:
    flip(shard(root, 0, 1))


def damage_replica(root: Path) -> None:
    flip(shard(root, 1, 1))


def damage_both(root: Path) -> None:
    damage_original(root)
    damage_replica(root)


def lose_one_and_damage_its_replica(root: Path) -> None:
    lose_node(root)
    flip(shard(root, 0, 3))


def damage_header(root: Path) -> None:
    flip(shard(root, 0, 0).with_suffix(".json"))


def swap_nodes(root: Path) -> None:
    (root / "local-0").rename(root / "other")
    (root / "local-1").rename(root / "local-0")
    (root / "other").rename(root / "local-1")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("trained")
    cut(root)
    return root


@pytest.mark.parametrize(
    ("happens", "step", "said"),
    [
        (nothing, 6, ""),
        (lose_node, 6, ""),
        (partial(lose_node, node=0), 6, ""),
        (damage_original, 6, "rank00001.pt has changed since the save; looking for its replica"),
        (damage_replica, 6, ""),
        (damage_both, 4, "nothing whole is left of the shard of rank 1"),
        (lose_one_and_damage_its_replica, 4, "nothing whole is left of the shard of rank 3"),
        (damage_header, 6, ""),
        (swap_nodes, 6, ""),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_the_newest_whole_one_of_both_tiers_is_resumed_from_by_all_ranks(
    tmp_path: Path, trained: Path, happens: Callable[[Path], None], step: int, said: str
) -> None:
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    happens(tmp_path)
    group = run(tmp_path, 4, train, options(tmp_path, 0, sharded=True))
    for rank in range(4):
        assert resumed(group, rank) == expected(group, rank, step)
    assert said in group.log
    assert group.events("resumed", rank=0)[-1]["tier"] == ("local" if step == 6 else "global")
    shutil.rmtree(tmp_path)


@pytest.mark.parametrize("algorithm", ["fully_parallel", "atomic"])
@pytest.mark.parametrize("mode", ["true", "false"], ids=["async", "sync"])
def test_what_all_ranks_hold_alike_comes_back_on_each(tmp_path: Path, algorithm: str, mode: str) -> None:
    checkpoint = {"non_persistent_local_ckpt_algo": algorithm, "async_save": mode}
    cut(tmp_path, sharded=False, checkpoint=checkpoint)
    lose_node(tmp_path)
    group = run(tmp_path, 4, train, options(tmp_path, 8, checkpoint=checkpoint))
    for rank in range(4):
        assert resumed(group, rank) == expected(group, rank, 6)


def test_one_is_kept_and_an_end_writes_the_global_tier(tmp_path: Path) -> None:
    group = run(tmp_path, 4, train, options(tmp_path, 10))
    assert not {event["step"] for event in group.events("checkpoint") if event["tier"] == "local"} ^ {3, 6, 9}
    assert len(list(tmp_path.glob("local-0/*/step_*"))) == 1
    assert len(list(tmp_path.glob("local-0/*/step_*/*.pt"))) == 4
    assert CheckpointStore(group.checkpoints, keep=2).committed() == [8, 10]
    assert progress_path(group.nrp, Attempt(job_id=JOB_ID)).read_text() == "10\n"


def test_the_step_of_a_local_one_is_written_to_the_global_tier_at_an_end(tmp_path: Path, trained: Path) -> None:
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    group = run(tmp_path, 4, train, options(tmp_path, 6, sharded=True))
    assert resumed(group, 0)[0] == 6
    assert CheckpointStore(group.checkpoints, keep=2).committed() == [4, 6]


def test_another_world_size_goes_on_from_the_global_tier(tmp_path: Path, trained: Path) -> None:
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    assert resumed(run(tmp_path, 2, train, options(tmp_path, 0, sharded=True)), 0)[0] == 4


def test_what_nodes_keep_of_another_training_is_not_taken(tmp_path: Path, trained: Path) -> None:
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "checkpoints")
    assert resumed(run(tmp_path, 4, train, options(tmp_path, 0, sharded=True)), 0)[0] == 0


@BY_MODE
def test_a_local_save_that_fails_on_one_rank_leaves_the_one_before(tmp_path: Path, mode: str) -> None:
    checkpoint = {**MODES[mode], "tolerated_save_failures": 1}
    failing = options(tmp_path, 99, every=100, failing=(6,), stop_at=8, checkpoint=checkpoint)
    with started(tmp_path, 4, train, failing) as group:
        wait_for(lambda: len(group.events("checkpoint_failed")) == 4)
        group.kill()
    assert {(event["tier"], event["step"]) for event in group.events("checkpoint_failed")} == {("local", 6)}
    assert [path.name[:14] for path in tmp_path.glob("local-*/*/step_*")] == ["step_000000003"] * 2
    group = run(tmp_path, 4, train, options(tmp_path, 0))
    for rank in range(4):
        assert resumed(group, rank) == expected(group, rank, 3)


def test_a_rank_that_is_slow_to_remove_the_last_save_leaves_the_next_one_alone(tmp_path: Path) -> None:
    checkpoint = {**ASYNC, "non_persistent_save_interval": 1, "non_persistent_local_ckpt_algo": "atomic"}
    slow = options(tmp_path, 99, every=100, bad_rank=3, slow_removal_s=0.2, stop_at=5, checkpoint=checkpoint)
    with started(tmp_path, 4, train, slow) as group:
        wait_for(lambda: group.durable(["local"])[-1:] == [5])
        group.kill()
    group = run(tmp_path, 4, train, options(tmp_path, 0))
    for rank in range(4):
        assert resumed(group, rank) == expected(group, rank, 5)
