"""What all plugins share: plan, preview, and setup as NeMo-Run calls it."""

from __future__ import annotations

import dataclasses
import shlex

import nemo_run as run
from nemo_run.core.execution.base import Executor
from nemo_run.run.plugin import ExperimentPlugin

from nemo_resiliency_plugins.errors import ConfigError
from nemo_resiliency_plugins.plugins.edits import Edit, apply


@dataclasses.dataclass(kw_only=True)
class ResiliencyPlugin(ExperimentPlugin):
    """A plugin that says what it will change before it changes anything."""

    def plan(self, task: run.Partial | run.Script, executor: Executor) -> tuple[Edit, ...]:
        """The edits for this task and executor. Changes nothing.

        Raises:
            ConfigError: the plugin cannot work with them; the message names the remedy.
        """
        raise NotImplementedError

    def setup(self, task: run.Partial | run.Script, executor: Executor) -> None:
        """Called by NeMo-Run. Applied twice it changes nothing more; after an error nothing is changed."""
        check_task(task)
        apply(self.plan(task, executor), task, executor)

    def preview(self, task: run.Partial | run.Script, executor: Executor) -> str:
        """The planned edits, a line or a block each."""
        check_task(task)
        return "\n".join(f"{edit.owner}: {edit}" for edit in self.plan(task, executor))


def check_task(task: object) -> None:
    """Raises ConfigError for what NeMo-Run (0.11) takes for a task and cannot start."""
    if isinstance(task, run.Partial):
        return
    if not isinstance(task, run.Script):
        rule = "must be a run.Script or a run.Partial"
        raise ConfigError("task", task, rule, "Wrap a function as run.Partial(function, ...).")
    if not isinstance(task.path, str):
        raise ConfigError("task.path", task.path, "must be a string", "Give str(path).")
    if not isinstance(task.args, (list, tuple)):
        raise ConfigError("task.args", task.args, "must be a list", "Give a list, empty where there are none.")
    try:
        shlex.split(task.entrypoint)
    except ValueError as error:
        rule = f"cannot be split into words: {error}"
        raise ConfigError("task.entrypoint", task.entrypoint, rule, "Close its quotes.") from error
