from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from nemo_resiliency_plugins.contract import Attempt, events_path, read_events
from nemo_resiliency_plugins.runtime.events import TRACEBACK_LINES, EventLog, emit_failure, where

ATTEMPT = Attempt("job", round=1, cycle=2)


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no words")


def full_disk(directory: Path) -> EventLog:
    path = events_path(directory, ATTEMPT, 0)
    path.parent.mkdir(parents=True)
    path.symlink_to("/dev/full")
    return EventLog(directory, ATTEMPT, 0)


def test_each_event_says_when_and_who(tmp_path: Path) -> None:
    EventLog(tmp_path, ATTEMPT, 3).emit("checkpoint", step=5)
    (event,) = read_events(tmp_path)
    assert event.pop("time") > 0
    assert event == {"event": "checkpoint", "rank": 3, "attempt": "job-0-1", "cycle": 2, "step": 5}


def test_a_later_cycle_appends(tmp_path: Path) -> None:
    for _ in range(2):
        EventLog(tmp_path, ATTEMPT, 0).emit("session_started")
    assert len(list(read_events(tmp_path))) == 2


def test_a_full_disk_is_one_warning_and_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = full_disk(tmp_path)
    for _ in range(3):
        log.emit("checkpoint")
    assert caplog.text.count("events of this rank are no longer kept") == 1


@pytest.mark.parametrize("value", [Unprintable(), {(1, 2): 3}, {1j}])
def test_an_odd_value_is_no_error(tmp_path: Path, value: object) -> None:
    EventLog(tmp_path, ATTEMPT, 0).emit("odd", value=value)


def test_a_directory_that_cannot_be_made_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    EventLog(tmp_path / "file", ATTEMPT, 0).emit("checkpoint")
    assert "events of this rank are not kept" in caplog.text


def test_nothing_is_written_after_the_end(tmp_path: Path) -> None:
    log = EventLog(tmp_path, ATTEMPT, 0)
    log.close()
    log.close()
    log.emit("late")
    assert list(read_events(tmp_path)) == []


def test_a_failure_is_recorded_by_name_with_the_end_of_its_traceback(tmp_path: Path) -> None:
    def down(depth: int) -> None:
        if depth == 0:
            raise KeyError("x" * 5000)
        further(depth - 1)

    def further(depth: int) -> None:
        down(depth)

    with pytest.raises(KeyError) as caught:
        down(100)
    emit_failure(EventLog(tmp_path, ATTEMPT, 0), "rank_failed", caught.value)
    (event,) = read_events(tmp_path)
    assert event["exception"] == "KeyError"
    assert len(event["message"]) == 2000
    assert len(event["traceback"]) == TRACEBACK_LINES
    assert "raise KeyError" in event["traceback"][-1]


def test_a_failure_says_where_in_the_users_code_it_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import json\n\ndef batch():\n    return json.loads('{')\n")
    code = compile((tmp_path / "train.py").read_text(), str(tmp_path / "train.py"), "exec")
    script: dict[str, Any] = {"__name__": "__main__"}
    exec(code, script)
    with pytest.raises(ValueError, match="Expecting") as caught:
        script["batch"]()
    assert where(caught.value) == "train.py:4"  # not the line in the standard library
    assert where(ValueError("never raised")) is None


def test_without_code_of_the_user_it_is_the_innermost_frame() -> None:
    with pytest.raises(ValueError, match="Expecting") as caught:
        json.loads("{")
    trace = caught.value.__traceback__
    assert trace is not None
    said = where(caught.value.with_traceback(trace.tb_next))
    assert said is not None
    assert re.search(r"json/decoder\.py:\d+$", said)
