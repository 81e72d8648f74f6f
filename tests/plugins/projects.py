"""A repository of the user's, with code that a job needs."""

from __future__ import annotations

import dataclasses
import importlib
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nemo_run as run


@dataclasses.dataclass(frozen=True)
class Project:
    """A repository of the user's, which is the working directory."""

    root: Path

    def write(self, *names: str, text: str = "def train():\n    pass\n") -> None:
        for name in names:
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(text)

    def commit(self, *names: str) -> None:
        self.write(*names)
        self.git("add", *(names or ["--all"]))
        self.git("commit", "--quiet", "--message=x")

    def git(self, *arguments: str) -> None:
        own = ["-c", "user.name=me", "-c", "user.email=me@here", "-c", "protocol.file.allow=always"]
        subprocess.run(["git", *own, *arguments], cwd=self.root, check=True, capture_output=True)


def train_of(module: str) -> Any:
    importlib.invalidate_caches()
    return importlib.import_module(module).train


Told = Callable[..., list[str]]


def script(path: str, **fields: Any) -> run.Script:
    return run.Script(path, entrypoint="python", **fields)


def pattern(project: Project, *names: str) -> run.PatternPackager:
    patterns = [str(project.root / name) for name in names]
    return run.PatternPackager(include_pattern=patterns, relative_path=[str(project.root)] * len(names))
