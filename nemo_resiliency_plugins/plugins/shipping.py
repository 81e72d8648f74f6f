"""Whether the code that a task needs will be there when the job starts: found at submission, not in the job."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import nemo_run as run
from nemo_run.core.execution.base import Executor

from nemo_resiliency_plugins.errors import UnsupportedError
from nemo_resiliency_plugins.plugins.edits import Edit, Note

REMEDY = "Commit it, or use a packager that ships the working tree, such as run.PatternPackager"


def check(owner: str, task: run.Script | run.Partial, executor: Executor) -> Iterator[Edit]:
    """Notes on code that would not be shipped.

    Raises:
        UnsupportedError: the task is a function that the job cannot import.
    """
    if isinstance(task, run.Partial):
        function = task.__fn_or_cls__
        if function.__module__ == "__main__":
            rule = "is defined in the launching file, which the job cannot import (NeMo-Run ships it by name)"
            raise UnsupportedError("task", function.__qualname__, rule, "Move it to a module of your project.")
    if isinstance(executor.packager, run.GitArchivePackager):
        changed = uncommitted_files()
        if changed:
            names = ", ".join(changed[:3]) + (" and more" if len(changed) > 3 else "")
            yield Note(owner, f"uncommitted and not shipped by GitArchivePackager: {names}. {REMEDY}", warn=True)


def uncommitted_files() -> list[str]:
    """Files of the current git repository that differ from its last commit, untracked ones included."""
    command = ["git", "status", "--porcelain", "--untracked-files=normal"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path.cwd())
    return [line[3:] for line in done.stdout.splitlines()] if done.returncode == 0 else []
