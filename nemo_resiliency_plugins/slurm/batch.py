"""Batch scripts for plain ``sbatch``, and the part of them that another tool's batch script can take in."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from nemo_resiliency_plugins.contract import MONITOR_FILE, NODE_SECTION, Kind
from nemo_resiliency_plugins.errors import ConfigError
from nemo_resiliency_plugins.slurm.policy import policy_values
from nemo_resiliency_plugins.slurm.render import render

OURS = ("nodes", "ntasks-per-node", "ntasks", "signal", "requeue", "no-requeue", "no-kill", "open-mode")
"""Options of sbatch that the request has already."""
STEP = ("--wait=60", "--kill-on-bad-exit=1")
"""A step ends when one of its tasks has failed, or a minute after the first has ended well."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchJob:
    """A training as Slurm is to run it.

    Attributes:
        directory: on a file system that all nodes share; each job gets a directory below.
        node: what the node script is told: kind, nnodes, nproc, start_skew_s and options of the launcher.
        settings: by section, what the sessions of the script are told.
        monitor: YAML with the settings of the rank monitors, for ``ft_launcher``.
        policy: parameters of :func:`~nemo_resiliency_plugins.slurm.policy.policy_values`.
        nodes: how many.
        tasks_per_node: a node script a node, or one a rank.
        signal: what Slurm sends before the time limit, as ``sbatch --signal`` takes it, or "".
        keeps_allocation: the loss of a node does not end the job.
        srun_arguments: further ones for the step; of two that set one option the last holds.
        variables: exported for the training.
    """

    directory: str
    node: Mapping[str, Any]
    settings: Mapping[str, Mapping[str, Any]]
    monitor: str
    policy: Mapping[str, Any]
    nodes: int
    tasks_per_node: int
    signal: str = ""
    keeps_allocation: bool = False
    srun_arguments: Sequence[str] = ()
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def script(
        self,
        command: Sequence[str],
        *,
        version: str,
        options: Sequence[str] = (),
        setup: Sequence[str] = (),
        python: str = "python",
    ) -> str:
        """The whole script.

        Args:
            command: what each rank, or its launcher, runs, such as ``["python", "train.py"]``.
            version: that of this package, to be named in the script.
            options: further ones of sbatch, such as ``--time=24:00:00``.
            setup: lines of bash that come before everything, such as ``module load cuda``.
            python: the interpreter on the nodes, which has this package.

        Raises:
            ConfigError: no command; an option that is not one line or that the request has already.
        """
        if not command:
            raise ConfigError("command", list(command), "is empty", "Say what to run, such as python train.py.")
        check_options(options)
        if not self.directory.startswith("/"):
            raise ConfigError("directory", self.directory, "must be absolute", "Give a path that all nodes share.")
        return render(
            "sbatch.sh.j2",
            version=version,
            kind=Kind(self.node["kind"]).value,
            inprocess="inprocess" in self.settings,
            request=self.request(),
            options=list(options),
            setup=list(setup),
            command=list(command),
            srun_arguments=self.step_arguments(),
            python=python,
            **self._prelude(),
        )

    def prelude(self) -> str:
        """What a batch script of another tool has to run before its step: settings and policy."""
        return render("prelude.sh.j2", **self._prelude())

    def request(self) -> list[str]:
        """Options of sbatch."""
        return [
            f"--nodes={self.nodes}",
            f"--ntasks-per-node={self.tasks_per_node}",
            *([f"--signal={self.signal}"] if self.signal else []),
            *(["--no-kill"] if self.keeps_allocation else []),
            "--requeue" if self.policy["requeue"] else "--no-requeue",
            "--open-mode=append",
        ]

    def step_arguments(self) -> list[str]:
        """Options of srun, each once."""
        return list({word.partition("=")[0]: word for word in (*STEP, *self.srun_arguments)}.values())

    def _prelude(self) -> dict[str, Any]:
        return {
            "directory": self.directory,
            "variables": dict(self.variables),
            "config": json.dumps({NODE_SECTION: self.node, **self.settings}, indent=1),
            "monitor": self.monitor if self.node["kind"] == Kind.FT.value else "",
            "monitor_file": MONITOR_FILE,
            "here": '"$NRP_DIR"',
            **policy_values(**self.policy),
        }


def check_options(options: Sequence[str]) -> None:
    """Raises ConfigError for an option that cannot stand in a script of ours."""
    for option in options:
        match = re.fullmatch(r"--([a-z-]+)(=.*)?", option)
        if match is None:
            remedy = "Give one long option each, such as --time=24:00:00."
            raise ConfigError("options", option, "must be --NAME or --NAME=VALUE, in one line", remedy)
        if match[1] in OURS:
            rule = "is set by the script already"
            raise ConfigError("options", option, rule, "Use the parameter or plugin that is there for it.")
