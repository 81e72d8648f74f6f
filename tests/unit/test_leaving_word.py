"""A job directory that is full, read-only or gone ends no training, and keeps no rank from leaving."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_resiliency_plugins.contract import Attempt, Reason, progress_path
from nemo_resiliency_plugins.runtime.batch import BatchNotes
from nemo_resiliency_plugins.runtime.identity import Identity
from nemo_resiliency_plugins.runtime.monitor import ConfiguredNote
from nemo_resiliency_plugins.runtime.record import Doing, RankRecord

DOING = Doing(pid=7, section="step", since=1.0, limit_s=5.0, step=3)


def in_the_way(tmp_path: Path) -> Path:
    """A directory that nobody can make."""
    (tmp_path / "file").touch()
    return tmp_path / "file" / "nrp"


def identity(directory: Path) -> Identity:
    return Identity(0, 1, "n1", Attempt("5"), directory, launched=True)


def test_notes_for_the_batch_script_are_warnings(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    notes = BatchNotes(identity(in_the_way(tmp_path)))
    notes.started()
    notes.checkpointed(4)
    notes.ended(Reason.FINISHED, 4)
    for what in ("started-5-0-0", "progress-5", "the verdict finished"):
        assert f"{what} cannot be left for others" in caplog.text


def test_notes_are_left_again_when_there_is_room(tmp_path: Path) -> None:
    notes = BatchNotes(identity(in_the_way(tmp_path)))
    notes.checkpointed(4)
    (tmp_path / "file").unlink()
    notes.checkpointed(6)
    assert progress_path(tmp_path / "file" / "nrp", Attempt("5")).read_text() == "6\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_leaves_the_record_as_it_was(tmp_path: Path) -> None:
    record = RankRecord(tmp_path, 0)
    record._handle = os.open("/dev/full", os.O_WRONLY)
    record.write(DOING)
    record.close()


def test_a_full_tmp_costs_only_what_the_next_start_would_know(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert ConfiguredNote(in_the_way(tmp_path)).first_answer({"step": 3.0}) == {"step": 3.0}
    assert "limits for the next start of this rank cannot be left" in caplog.text


LEAVING = """
import sys
from nemo_resiliency_plugins.runtime.identity import Identity
from nemo_resiliency_plugins.runtime.preemption.leaving import leave_set_up
leave_set_up(Identity.from_env())
"""


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["-c", LEAVING], 0),
        (["-m", "nemo_resiliency_plugins.runtime.launch", "fails.py"], 7),
        (["-m", "nemo_resiliency_plugins.runtime.launch", "missing.py"], 1),
    ],
)
def test_a_rank_leaves_with_its_own_code_all_the_same(tmp_path: Path, arguments: list[str], code: int) -> None:
    (tmp_path / "fails.py").write_text("raise SystemExit(7)")
    env = {**os.environ, "NRP_DIR": str(in_the_way(tmp_path)), "RANK": "0"}
    done = subprocess.run([sys.executable, *arguments], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == code
    assert "cannot be left for others" in done.stderr
