from __future__ import annotations

from pathlib import Path

import pytest

from nemo_resiliency_plugins.contract import Attempt, events_path, read_events
from nemo_resiliency_plugins.runtime.events import TRACEBACK_LINES, EventLog, emit_failure

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
