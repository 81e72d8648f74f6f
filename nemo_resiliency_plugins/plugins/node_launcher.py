"""The launcher of Slurm jobs: NeMo-Run starts our node script on every node, and that starts the ranks' launcher."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import re
import shlex
from pathlib import Path
from typing import Any

import nemo_run as run
import yaml
from nemo_run.core.execution.launcher import SlurmTemplate

from nemo_resiliency_plugins.compat import nvrx
from nemo_resiliency_plugins.compat.nemo_run import mend_status
from nemo_resiliency_plugins.config import PreemptionConfig
from nemo_resiliency_plugins.contract import CONFIG_FILE, MONITOR_FILE, NODE_SECTION, RUNTIME_FILE, Kind
from nemo_resiliency_plugins.errors import ConfigError
from nemo_resiliency_plugins.plugins.bundle import write_runtime_zip
from nemo_resiliency_plugins.slurm.policy import retry_script
from nemo_resiliency_plugins.slurm.render import render

RUN_DIR = "/nemo_run"
"""NeMo-Run mounts the job directory there, and without a container replaces it by the real one."""
NRP = "nrp"
POLICY_FILE = "retry_policy.sh"
BY_NAME = "by name"
"""The key of tasks whose command holds the name that NeMo-Run has given them."""
START_SKEW_S, CHECK_INTERVAL_S = 600.0, 1.0


@dataclasses.dataclass(kw_only=True)
class NodeLauncher(SlurmTemplate):
    """``transform`` writes what the job needs into ``room``, below ``job_dir``, and returns the node script.

    What plugins have set is owned: ``owners`` has the plugin by field, or by entry of a mapping. ``max_restarts`` and
    the heartbeat timeouts are there under the names that ``run.FaultTolerance`` has.
    """

    job_dir: str = ""
    room: str = NRP
    kind: str = Kind.RANK.value
    nodes: int = 1
    ranks_per_node: int = 1
    spare_nodes: int = 0
    start_skew_s: float = START_SKEW_S
    options: list[str] = dataclasses.field(default_factory=list)
    config: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    monitor: dict[str, Any] = dataclasses.field(default_factory=dict)
    policy: dict[str, Any] = dataclasses.field(default_factory=dict)
    prestart: list[str] = dataclasses.field(default_factory=list)
    variables: dict[str, str] = dataclasses.field(default_factory=dict)
    max_restarts: int | None = None
    initial_rank_heartbeat_timeout: float | None = None
    rank_heartbeat_timeout: float | None = None
    trains: int = 0
    tasks: dict[str, str] = dataclasses.field(default_factory=dict)
    owners: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        """The template is ours, so none has to be given.

        A process that asks for the status later builds the launcher again, and nothing else of ours.
        """
        mend_status()

    def claimed(self, name: str) -> Any:
        """The value of a field, or with ``a.b`` of an entry of the mapping ``a``."""
        field, _, key = name.partition(".")
        return getattr(self, field).get(key) if key else getattr(self, field)

    def default(self, name: str) -> Any:
        """The value of the field or entry before anybody claims it."""
        return type(self)().claimed(name)

    def claim(self, name: str, value: Any) -> None:
        field, _, key = name.partition(".")
        if key:
            getattr(self, field)[key] = value
        else:
            setattr(self, field, value)

    def transform(self, cmd: list[str]) -> run.Script | None:
        """The node script for ``cmd``, or None for a task of a group that does not train."""
        cmd = [str(word) for word in cmd]
        if not self._is_training(cmd):
            return None
        directory = Path(self.job_dir) / self.room
        directory.mkdir(parents=True, exist_ok=True)
        (directory / CONFIG_FILE).write_text(
            json.dumps({NODE_SECTION: self.node_settings(), **self.config}, indent=1) + "\n"
        )
        (directory / MONITOR_FILE).write_text(yaml.safe_dump(self.monitor_settings(), sort_keys=False))
        (directory / POLICY_FILE).write_text(retry_script(**self.policy_values()))
        write_runtime_zip(directory / RUNTIME_FILE)
        version = importlib.metadata.version("nemo-resiliency-plugins")
        command = self._with_inline_script_kept(cmd, directory)
        values = {"version": version, "room": self.room, "variables": self.variables, "command": command}
        return run.Script(inline=render("node.sh.j2", **values))

    def policy_values(self) -> dict[str, Any]:
        """The parameters of the retry policy."""
        retries = self.policy.get("max_failures", 0)
        preemption = PreemptionConfig.PLUGIN in self.config
        return {**self.policy, "max_failures": retries, "requeue": retries > 0 or preemption}

    def monitor_settings(self) -> dict[str, Any]:
        """What FaultTolerancePlugin has asked for, or without it what NeMo-Run's own launcher was told."""
        return self.monitor or nvrx.monitor_settings(
            section_timeouts={},
            out_of_section_timeout=None,
            workload_check_interval=CHECK_INTERVAL_S,
            heartbeats=(self.initial_rank_heartbeat_timeout, self.rank_heartbeat_timeout),
        )

    def node_settings(self) -> dict[str, Any]:
        """What the node script reads."""
        restarts = [] if self.max_restarts is None else [f"--max-restarts={self.max_restarts}"]
        return {
            "kind": self.kind,
            "nnodes": f"{self.nodes - self.spare_nodes}:{self.nodes}",
            "nproc": self.ranks_per_node,
            "start_skew_s": self.start_skew_s,
            "options": [*restarts, *self.options],
            "prestart": self.prestart,
        }

    def _is_training(self, cmd: list[str]) -> bool:
        keys = [*self.tasks.values()]
        if keys and self.trains >= len(keys):
            rule = f"the group has {len(keys)} tasks"
            raise ConfigError(f"{self.owners['launcher.trains']}.trains", self.trains, rule, "Count them from 0.")
        if len(keys) > 1 and keys[self.trains] != BY_NAME and keys.count(keys[self.trains]) > 1:
            rule = "several tasks of the group run this, so that nobody can tell which of them trains"
            raise ConfigError("tasks", shlex.join(cmd), rule, "Let them differ, in an argument for example.")
        return len(keys) < 2 or _matches(keys[self.trains], self.trains, cmd)

    def _with_inline_script_kept(self, cmd: list[str], directory: Path) -> list[str]:
        """NeMo-Run 0.11 stores the node script under the name of an inline task, so that one needs another name."""
        stored = Path(cmd[-1])
        if stored.parent != Path(RUN_DIR) / "scripts":
            return cmd
        kept = directory / f"task-{stored.name}"
        kept.write_text((Path(self.job_dir) / "scripts" / stored.name).read_text())
        return [*cmd[:-1], f"{RUN_DIR}/{self.room}/{kept.name}"]


def task_key(task: run.Script | run.Partial) -> str:
    """What tells a task of a group from the others in the command that ``transform`` sees."""
    if isinstance(task, run.Script) and task.path:
        return json.dumps([task.entrypoint, *map(str, task.to_command())])
    return BY_NAME


def _matches(key: str, index: int, cmd: list[str]) -> bool:
    """NeMo-Run names the tasks of a group ``<group>-<index>``, which inline scripts and Partials carry along."""
    if key != BY_NAME:
        return bool(json.loads(key) == cmd)
    name = Path(cmd[-1]).stem if Path(cmd[-1]).parent.name == "scripts" else cmd[cmd.index("-n") + 1]
    return re.search(rf"-{index}$", name) is not None
