from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_resiliency_plugins.runtime.checkpoint import checksums


@given(st.lists(st.integers(0, 10**9), max_size=20), st.integers(1, 8))
def test_the_ranks_share_all_files_and_none_twice(sizes: list[int], world_size: int) -> None:
    sums: checksums.Sums = {f"{number}": {"size": size, "crc32": 0} for number, size in enumerate(sizes)}
    parts = [checksums.share(sums, rank, world_size) for rank in range(world_size)]
    assert sorted(name for part in parts for name in part) == sorted(sums)
    loads = [sum(entry["size"] for entry in part.values()) for part in parts]
    assert max(loads) - min(loads) <= max(sizes, default=0)


@pytest.mark.parametrize("size", [0, 1, checksums.BLOCK, checksums.BLOCK + 1])
def test_a_file_that_stays_as_it_was_has_no_change(tmp_path: Path, size: int) -> None:
    (tmp_path / "data").write_bytes(b"x" * size)
    assert checksums.first_change(tmp_path, checksums.of_files([tmp_path / "data"])) is None


def test_a_change_is_told_with_the_name_of_the_file(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text("before")
    sums = checksums.of_files([tmp_path / "a", tmp_path / "b"])
    (tmp_path / "b").write_text("behind")
    change = checksums.first_change(tmp_path, sums)
    assert change is not None
    assert f"{tmp_path / 'b'} has changed" in change
    (tmp_path / "a").unlink()
    assert f"{tmp_path / 'a'} cannot be read" in (checksums.first_change(tmp_path, sums) or "")
