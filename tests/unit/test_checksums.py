from __future__ import annotations

import random
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


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksums, "PART", 1 << 12)
    monkeypatch.setattr(checksums, "BUFFER", 1 << 10)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 100_000])
def test_a_file_that_stays_as_it_was_has_no_change_and_one_bit_is_one(tmp_path: Path, size: int) -> None:
    path = tmp_path / "data"
    content = random.Random(size).randbytes(size)
    path.write_bytes(content)
    sums = checksums.of_files([path])
    assert checksums.first_change(tmp_path, sums) is None
    for at in {0, size // 2, size - 1} if size else ():
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        assert checksums.first_change(tmp_path, sums)
    path.write_bytes(content + b"x")
    assert checksums.first_change(tmp_path, sums)


@pytest.mark.usefixtures("small_parts")
def test_parts_in_another_order_are_another_file(tmp_path: Path) -> None:
    parts = [bytes([number]) * (1 << 12) for number in range(8)]
    path = tmp_path / "data"
    path.write_bytes(b"".join(parts))
    sums = checksums.of_files([path])
    path.write_bytes(b"".join(reversed(parts)))
    assert checksums.first_change(tmp_path, sums)


def test_a_part_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        checksums.of_file(tmp_path)
    summing = checksums.Summing(-1, parts=3)
    summing.work()
    with pytest.raises(OSError, match="Bad file descriptor"):
        summing.result()


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
