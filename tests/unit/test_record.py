from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_resiliency_plugins.contract import rank_record_path
from nemo_resiliency_plugins.runtime.record import Doing, LastLife, RankRecord, note_end, read_last_life

DOING = Doing(pid=7, section="step", since=1000.0, limit_s=10.0, step=3)
BAD = [
    b"",
    b"\0" * 1024,
    b"[]\n",
    b"7\n",
    b'{"pid": 7}\n',
    json.dumps({**vars(DOING), "since": "noon"}).encode(),
    json.dumps({**vars(DOING), "limit_s": "long"}).encode(),
    json.dumps(vars(DOING)).encode() + b'\n{"pid": 7, "ended": "noon"}\n',
    json.dumps(vars(DOING)).encode() + b'\n{"pid": 7, "ended": null}\n',
]


def life(ended: float, limit_s: float | None = 10.0) -> LastLife:
    return LastLife(Doing(7, "step", 1000.0, limit_s, 3), ended)


def test_a_rank_that_ended_beyond_its_limit_hung() -> None:
    assert life(1010.0).hung_in == "step"


def test_a_rank_that_ended_in_time_or_without_a_limit_did_not_hang() -> None:
    assert life(1009.9).hung_in is None
    assert life(9999.0, limit_s=None).hung_in is None


def test_the_next_start_learns_what_its_rank_was_doing(tmp_path: Path) -> None:
    first = RankRecord(tmp_path, 3)
    assert first.last_life is None
    first.write(Doing(7, "setup", 900.0, None, 0))
    first.write(DOING)
    note_end(rank_record_path(tmp_path, 3), 7)
    last = RankRecord(tmp_path, 3).last_life
    assert last is not None
    assert last.doing == DOING
    assert abs(last.ended - time.time()) < 60.0


def test_the_end_of_another_process_says_nothing(tmp_path: Path) -> None:
    path = rank_record_path(tmp_path, 0)
    RankRecord(tmp_path, 0).write(DOING)
    note_end(path, 8)
    last = read_last_life(path)
    assert last is not None
    assert abs(last.ended - time.time()) < 60.0


def test_leaving_on_purpose_leaves_no_last_life(tmp_path: Path) -> None:
    record = RankRecord(tmp_path, 0)
    record.write(DOING)
    record.close()
    note_end(rank_record_path(tmp_path, 0), 7)
    assert RankRecord(tmp_path, 0).last_life is None


def test_the_end_of_a_rank_without_a_record_leaves_none(tmp_path: Path) -> None:
    note_end(rank_record_path(tmp_path, 0), 7)
    assert not rank_record_path(tmp_path, 0).exists()


def test_a_directory_that_cannot_be_written_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "ranks").write_text("in the way")
    RankRecord(tmp_path, 0).write(DOING)
    assert "the record of this rank is not kept" in caplog.text


def test_without_a_directory_nothing_is_recorded() -> None:
    record = RankRecord(None, 0)
    record.write(DOING)
    record.close()
    assert record.last_life is None


@pytest.mark.parametrize("content", BAD)
def test_a_bad_record_is_no_last_life(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "record"
    path.write_bytes(content)
    assert read_last_life(path) is None


@given(st.binary(max_size=80))
def test_no_bytes_break_the_reader(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("record") / "record"
    path.write_bytes(content)
    assert read_last_life(path) is None
