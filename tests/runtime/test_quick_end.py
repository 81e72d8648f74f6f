"""A failed rank ends without a search for garbage, and nothing that its script has written is lost by that."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.harness import LAUNCH, ended_afterwards, spawn

SEEN = """
import gc

class Seen:
    def __del__(self, frozen=gc.get_freeze_count):
        print("frozen" if frozen() else "searched", flush=True)

seen = Seen()
"""
SCRIPT = """
import atexit, sys
import seen

class Noted:
    def __init__(self):
        self.me, self.file = self, open("noted.txt", "w")

class Proxy:
    @property
    def __class__(self):
        raise RuntimeError("of nothing")

noted, proxy = Noted(), Proxy()
noted.file.write("in the script, ")
atexit.register(lambda: noted.file.write("in a hook"))
"""
ENDS = {"finished": ("", 0, "searched"), "failed": ("1 / 0", 1, "frozen"), "with a code": ("sys.exit(3)", 3, "frozen")}


@pytest.mark.parametrize("how", ENDS)
def test_what_is_part_of_a_cycle_is_written(tmp_path: Path, how: str) -> None:
    end, code, garbage = ENDS[how]
    (tmp_path / "seen.py").write_text(SEEN)
    (tmp_path / "script.py").write_text(SCRIPT + end)
    job = spawn(tmp_path, [sys.executable, *LAUNCH, "script.py"], {})
    with ended_afterwards(job):
        assert job.wait(30.0) == code
    assert garbage in job.log
    assert "of nothing" not in job.log
    assert (tmp_path / "noted.txt").read_text() == "in the script, in a hook"
