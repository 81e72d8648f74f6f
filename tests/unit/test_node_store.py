from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_resiliency_plugins.runtime.checkpoint import node_store
from nemo_resiliency_plugins.runtime.checkpoint.node_store import NodeStore, Shard, replica_keepers


def write(store: NodeStore, rank: int, *, step: int = 3, number: int = 7, content: bytes = b"content") -> Shard:
    return store.write((step, number), rank, 2, lambda file: file.write(content))


def test_a_shard_is_found_as_it_was_written(tmp_path: Path) -> None:
    written = write(NodeStore(tmp_path), 1)
    assert list(NodeStore(tmp_path).shards()) == [written]
    assert NodeStore(tmp_path).problem(written) is None


def test_a_shard_without_its_header_is_none(tmp_path: Path) -> None:
    store = NodeStore(tmp_path)
    store.path(write(store, 1)).with_suffix(".json").unlink()
    store.path(write(store, 0)).with_suffix(".json").write_text("{")
    assert list(store.shards()) == []


def test_a_disk_that_cannot_be_read_has_no_shards_and_takes_none(tmp_path: Path) -> None:
    store = NodeStore(tmp_path / ("x" * 300))
    assert list(store.shards()) == []
    with pytest.raises(OSError, match="too long"):
        store.directories()
    with pytest.raises(OSError, match="too long"):
        write(store, 0)


def test_damage_is_told_with_the_name_of_the_file(tmp_path: Path) -> None:
    store = NodeStore(tmp_path)
    shard = write(store, 1)
    store.path(shard).write_bytes(b"Content")
    assert str(store.path(shard)) in (store.problem(shard) or "")


def test_one_save_is_kept_also_of_two_of_the_same_step(tmp_path: Path) -> None:
    store = NodeStore(tmp_path)
    write(store, 0, number=1)
    write(store, 0, number=2)
    write(store, 0, step=2)
    store.keep_only((3, 2), store.directories())
    assert [shard.save for shard in store.shards()] == [(3, 2)]
    store.discard((3, 2))
    assert not list(store.shards())


def test_each_name_is_durable_before_the_next_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory of the save, then the data in it, then the header."""
    seen: list[set[str]] = []

    def noted(path: Path) -> None:
        seen.append({path.name, *(entry.suffix for entry in path.iterdir() if entry.is_file())})

    monkeypatch.setattr(node_store, "fsync_directory", noted)
    monkeypatch.setattr(node_store, "write_atomically", lambda path, text: seen.append({path.suffix}))
    write(NodeStore(tmp_path / "root"), 0)
    assert seen == [{"root"}, {"step_000000003-000000000007", ".pt"}, {".json"}]


@pytest.mark.parametrize(
    ("nodes", "keepers"),
    [
        ("aa", [None, None]),
        ("aabb", [2, 3, 0, 1]),
        ("abab", [1, 0, 3, 2]),
        ("abc", [1, 0, 0]),
        ("aab", [2, 2, 0]),
        ("aabbccdd", [2, 3, 0, 1, 6, 7, 4, 5]),
    ],
)
def test_replicas_go_to_the_partner_node(nodes: str, keepers: list[int | None]) -> None:
    assert replica_keepers(list(nodes)) == keepers


@given(st.lists(st.sampled_from("abcde"), min_size=1, max_size=20))
def test_no_node_keeps_the_replicas_of_its_own_ranks(nodes: list[str]) -> None:
    for node, keeper in zip(nodes, replica_keepers(nodes), strict=True):
        assert (keeper is None) if len(set(nodes)) == 1 else (keeper is not None and nodes[keeper] != node)
