"""What a launch script would submit: the plugins' edits, and the scripts that NeMo-Run would write."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import nemo_run as run
from nemo_run.config import get_nemorun_home, set_nemorun_home
from nemo_run.core.execution.base import Executor
from nemo_run.run.experiment import Experiment

from nemo_resiliency_plugins.plugins.base import ResiliencyPlugin
from nemo_resiliency_plugins.plugins.edits import Edit, Note
from nemo_resiliency_plugins.plugins.shipping import refuse_without_archive

HOME = "$NEMORUN_HOME"
"""Stands in what is shown for the directory of the preview, which is gone afterwards."""
SCRIPTS = ("*_sbatch.sh", "scripts/*.sh", "nrp/retry_policy.sh", "nrp/config.json", "nrp/ft.yaml")


@dataclasses.dataclass(frozen=True)
class Preview:
    """Of one experiment.

    Attributes:
        edits, notes: lines or blocks, each once with its plugins.
        files: the scripts by name.
    """

    title: str
    edits: list[str]
    notes: list[str]
    files: dict[str, str]


class SharedEdits:
    """What the plugins change, in the order in which it was first asked for."""

    def __init__(self) -> None:
        self._owners: dict[tuple[int, str, bool], dict[str, None]] = {}
        self._executors: dict[int, Executor] = {}

    def add(self, edit: Edit, executor: Executor) -> None:
        """Of two alike for one executor the second changes nothing: it is one edit, of both plugins."""
        self._executors[id(executor)] = executor  # so that no other one gets its id
        self._owners.setdefault((id(executor), str(edit), isinstance(edit, Note)), {})[edit.owner] = None

    def told(self, jobs: Sequence[Any]) -> tuple[list[str], list[str]]:
        """A line or a block for each change and each note, which names the job of several, and a fresh begin."""
        found, self._owners = self._owners, {}
        names = {id(executor): f"{job.id}: " for job in jobs for executor in _executors(job)} if len(jobs) > 1 else {}
        told: tuple[list[str], list[str]] = ([], [])
        for (executor, text, is_note), owners in found.items():
            told[is_note].append(f"{names.get(executor, '')}{', '.join(owners)}: {text}")
        return told


def _executors(job: Any) -> list[Executor]:
    """Those of a group, or the one of a single job."""
    found = getattr(job, "executors", None) or job.executor
    return found if isinstance(found, list) else [found]


def previews(launch: Callable[[], object]) -> list[Preview]:
    """Run ``launch`` with every ``run.run`` and ``Experiment.run`` in it turned into a preview.

    Raises:
        ConfigError: a plugin refuses the task or the executor.
    """
    found: list[Preview] = []
    with tempfile.TemporaryDirectory(prefix="nemo-resiliency-preview-") as home, _home(home), _recording(found, home):
        launch()
    return found


def preview_of(task: Any, executor: Any, plugins: list[Any]) -> list[Preview]:
    """The preview of what a recipe returns."""
    return previews(lambda: run.run(task, executor=executor, plugins=plugins, name="preview"))


@contextlib.contextmanager
def _home(home: str) -> Iterator[None]:
    before = get_nemorun_home()
    set_nemorun_home(home)
    try:
        yield
    finally:
        set_nemorun_home(before)


@contextlib.contextmanager
def _recording(found: list[Preview], home: str) -> Iterator[None]:
    """Plugins tell their plan when NeMo-Run sets them up, and an experiment is shown instead of run."""
    edits = SharedEdits()
    set_up = ResiliencyPlugin.setup

    def setup(plugin: ResiliencyPlugin, task: Any, executor: Any) -> None:
        for edit in plugin.plan(task, executor):
            edits.add(edit, executor)
        set_up(plugin, task, executor)

    def show(experiment: Experiment, *_: Any, **__: Any) -> None:
        for job in experiment.jobs:
            if isinstance(job.executor, run.SlurmExecutor):  # also where no plugin has looked at it
                refuse_without_archive(job.executor.packager)
        experiment.dryrun(log=False, delete_exp_dir=False)
        changes, notes = ([_shown(text, home) for text in each] for each in edits.told(experiment.jobs))
        found.append(Preview(experiment._title, changes, notes, _files(Path(experiment._exp_dir), home)))

    quiet = logging.getLogger("torchx")
    level = quiet.level
    quiet.setLevel(logging.ERROR)
    try:
        with (
            mock.patch.object(ResiliencyPlugin, "setup", setup),
            mock.patch.object(Experiment, "run", show),
            mock.patch.object(Experiment, "__exit__", lambda *_: None),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            yield
    finally:
        quiet.setLevel(level)


def _files(directory: Path, home: str) -> dict[str, str]:
    paths = sorted(path for pattern in SCRIPTS for path in directory.rglob(pattern))
    return {str(path.relative_to(directory)): _shown(path.read_text(), home) for path in paths}


def _shown(text: str, home: str) -> str:
    return text.replace(home, HOME)
