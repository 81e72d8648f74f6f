"""What NeMo-Run would start for a task, without starting it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import nemo_run as run
from nemo_run.run.torchx_backend.packaging import package

from nemo_resiliency_plugins.plugins.base import ResiliencyPlugin


@dataclasses.dataclass(frozen=True)
class Submission:
    """The process that LocalExecutor starts: arguments and variables."""

    command: list[str]
    env: dict[str, str]


def submission(
    task: run.Script | run.Partial, executor: run.LocalExecutor, plugins: Sequence[ResiliencyPlugin], directory: Path
) -> Submission:
    """Apply the plugins as ``run.run`` does and package the task."""
    executor.assign("experiment", str(directory), "task", "task")
    for plugin in plugins:
        plugin.setup(task, executor)
    executor.create_job_dir()
    role = package("task", task, executor, serialize_to_file=True).roles[0]
    return Submission([role.entrypoint, *role.args], dict(role.env))
