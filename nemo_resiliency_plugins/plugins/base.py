"""What all plugins share: plan, preview, and setup as NeMo-Run calls it."""

from __future__ import annotations

import dataclasses

import nemo_run as run
from nemo_run.core.execution.base import Executor
from nemo_run.run.plugin import ExperimentPlugin

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
        apply(self.plan(task, executor), task, executor)

    def preview(self, task: run.Partial | run.Script, executor: Executor) -> str:
        """The planned edits, a line or a block each."""
        return "\n".join(f"{edit.owner}: {edit}" for edit in self.plan(task, executor))
