"""The launcher of Slurm jobs: NeMo-Run starts our node script on every node, and that starts ``ft_launcher``."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import re
from pathlib import Path
from typing import Any

import nemo_run as run
import yaml
from nemo_run.core.execution.launcher import SlurmTemplate

from nemo_resiliency_plugins.contract import CONFIG_FILE, MONITOR_FILE, RUNTIME_FILE
from nemo_resiliency_plugins.errors import ConfigError
from nemo_resiliency_plugins.plugins.bundle import write_runtime_zip
from nemo_resiliency_plugins.slurm.render import render

RUN_DIR = "/nemo_run"
"""NeMo-Run mounts the job directory there, and without a container replaces it by the real one."""
NRP = "nrp"


@dataclasses.dataclass(kw_only=True)
class NodeLauncher(SlurmTemplate):
    """``transform`` writes what the job needs into ``<job_dir>/nrp`` and returns the node script.

    ``max_restarts`` and the heartbeat timeouts are there under the names that ``run.FaultTolerance`` has.
    """

    job_dir: str = ""
    node: dict[str, Any] = dataclasses.field(default_factory=dict)
    config: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    monitor: dict[str, Any] = dataclasses.field(default_factory=dict)
    variables: dict[str, str] = dataclasses.field(default_factory=dict)
    max_restarts: int | None = None
    initial_rank_heartbeat_timeout: float | None = None
    rank_heartbeat_timeout: float | None = None
    trains: int = 0
    tasks: dict[str, str] = dataclasses.field(default_factory=dict)
    owners: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        """The template is ours, so none has to be given."""

    def transform(self, cmd: list[str]) -> run.Script | None:
        """The node script for ``cmd``, or None for a task of a group that does not train."""
        if not self._is_training(cmd):
            return None
        directory = Path(self.job_dir) / NRP
        directory.mkdir(parents=True, exist_ok=True)
        (directory / CONFIG_FILE).write_text(json.dumps({"node": self.node, **self.config}, indent=1) + "\n")
        (directory / MONITOR_FILE).write_text(yaml.safe_dump(self.monitor, sort_keys=False))
        write_runtime_zip(directory / RUNTIME_FILE)
        version = importlib.metadata.version("nemo-resiliency-plugins")
        command = self._with_inline_script_kept(cmd, directory)
        return run.Script(inline=render("node.sh.j2", version=version, variables=self.variables, command=command))

    def _is_training(self, cmd: list[str]) -> bool:
        keys = [*self.tasks.values()]
        if keys and self.trains >= len(keys):
            rule = f"the group has {len(keys)} tasks"
            raise ConfigError("FaultTolerancePlugin.trains", self.trains, rule, "Count them from 0.")
        return len(keys) < 2 or _matches(keys[self.trains], self.trains, cmd)

    @staticmethod
    def _with_inline_script_kept(cmd: list[str], directory: Path) -> list[str]:
        """NeMo-Run 0.11 stores the node script under the name of an inline task, so that one needs another name."""
        stored = Path(cmd[-1])
        if stored.parent != Path(RUN_DIR) / "scripts":
            return cmd
        kept = directory / f"task-{stored.name}"
        kept.write_text((directory.parent / "scripts" / stored.name).read_text())
        return [*cmd[:-1], f"{RUN_DIR}/{NRP}/{kept.name}"]


def task_key(task: run.Script | run.Partial) -> str:
    """What tells a task of a group from the others in the command that ``transform`` sees."""
    if isinstance(task, run.Script) and task.path:
        return json.dumps([task.entrypoint, *task.to_command()])
    return "by name"


def _matches(key: str, index: int, cmd: list[str]) -> bool:
    """NeMo-Run names the tasks of a group ``<group>-<index>``, which inline scripts and Partials carry along."""
    if key != "by name":
        return bool(json.loads(key) == cmd)
    name = Path(cmd[-1]).stem if Path(cmd[-1]).parent.name == "scripts" else cmd[cmd.index("-n") + 1]
    return re.search(rf"-{index}$", name) is not None
