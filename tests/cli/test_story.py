"""What ``status`` and ``report`` tell of a job that has failed for good, under the real launcher."""

from __future__ import annotations

import re
from pathlib import Path

from typer.testing import CliRunner

from nemo_resiliency_plugins.cli.main import app
from tests.harness import ended_afterwards, start


def said(verb: str, directory: Path) -> str:
    done = CliRunner().invoke(app, [verb, str(directory)])
    assert done.exit_code == 1, done.output
    return done.output


def test_a_failure_that_nobody_has_scripted_is_told_in_a_line_as_soon_as_the_launcher_has_ended(tmp_path: Path) -> None:
    job = start(tmp_path, "failing.py", ranks=2)
    with ended_afterwards(job):
        assert job.wait() != 0
    line = (
        r"rank 1 on \S+: RuntimeError: the shard is unreadable at step 0 \(\S*failing\.py:\d+\); "
        r"not started again; cost \d+\.\d s$"
    )
    assert re.search(rf"^failure: {line}", said("status", tmp_path), re.M)
    report = said("report", tmp_path)
    assert re.search(rf"^first failure: {line}", report, re.M)
    assert re.search(r"^failed; step", report, re.M)
    drawn = {number: "X" in signs for number, signs in re.findall(r"^rank +(\d) (.*)$", report, re.M)}
    assert drawn == {"0": False, "1": True}
