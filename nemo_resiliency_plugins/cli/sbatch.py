"""``nemo-resiliency sbatch``: prints a batch script for Slurm without NeMo-Run."""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nemo_resiliency_plugins.contract import decode_value
from nemo_resiliency_plugins.errors import ConfigError

if TYPE_CHECKING:
    from nemo_resiliency_plugins.plugins.base import ResiliencyPlugin


OPTIONS = {
    "directory": "--directory",
    "options": "--option",
    "retries": "--retries",
    "srun_options": "--srun-option",
    "variables": "--env",
}
"""What the parameters of the function behind this verb are here."""


class Goal(str, enum.Enum):
    """The plugin that a script is for."""

    FAULT_TOLERANCE = "fault-tolerance"
    PREEMPTION = "preemption"
    INPROCESS = "inprocess"


def sbatch(
    goal: Annotated[Goal, typer.Argument(help="what starts the ranks: ft_launcher, torchrun, or srun itself")],
    command: Annotated[list[str], typer.Argument(help="what the ranks run, after --")],
    directory: Annotated[str, typer.Option(help="on a file system that all nodes share; holds a directory a job")],
    nodes: Annotated[int, typer.Option(min=1)] = 1,
    ranks_per_node: Annotated[int, typer.Option(min=1)] = 1,
    retries: Annotated[int, typer.Option(min=0, help="attempts after failures; fault-tolerance has a field")] = 0,
    plugins: Annotated[list[str] | None, typer.Option("--with", help="a further plugin, such as preemption")] = None,
    fields: Annotated[
        list[str] | None, typer.Option("--set", help="[PLUGIN.]FIELD=VALUE; a plugin that is named so is added")
    ] = None,
    variables: Annotated[list[str] | None, typer.Option("--env", help="NAME=VALUE, exported for the training")] = None,
    options: Annotated[list[str] | None, typer.Option("--option", help="of sbatch, such as --time=1:00:00")] = None,
    srun_options: Annotated[list[str] | None, typer.Option("--srun-option", help="of the step")] = None,
    setup: Annotated[list[str] | None, typer.Option("--setup", help="a line of bash that comes first")] = None,
    python: Annotated[str, typer.Option(help="on the nodes; it must have this package")] = "python",
) -> None:
    """Print a commented batch script for plain Slurm.

    Example: nemo-resiliency sbatch fault-tolerance --nodes 4 --ranks-per-node 8 --directory /shared/me/nrp
    --option=--time=24:00:00 --set rank_heartbeat_timeout=60 --with preemption -- python train.py --steps 1000
    """
    from nemo_resiliency_plugins.plugins.plain_slurm import in_words_of, sbatch_script

    with in_words_of(OPTIONS):
        text = sbatch_script(
            _plugins(goal, plugins or [], fields or []),
            command,
            directory=directory,
            nodes=nodes,
            ranks_per_node=ranks_per_node,
            launcher="torchrun" if goal is Goal.PREEMPTION else None,
            retries=retries,
            variables=dict(_pair("--env", text) for text in variables or []),
            options=options or [],
            srun_options=srun_options or [],
            setup=setup or [],
            python=python,
        )
    typer.echo(text, nl=False)


def _plugins(goal: Goal, further: list[str], fields: list[str]) -> list[ResiliencyPlugin]:
    """The plugin of ``goal`` and the others that are named, with their fields.

    Raises:
        ConfigError: an unknown plugin or field, or a value that breaks a rule.
    """
    kinds, own = _kinds(), goal.value
    wanted: dict[str, dict[str, Any]] = {name: {} for name in (own, *further)}
    for text in fields:
        path, value = _pair("--set", text)
        plugin, _, field = path.rpartition(".")
        wanted.setdefault(plugin or own, {})[field] = decode_value(value)
    for name in wanted.keys() - kinds.keys():
        raise ConfigError("plugin", name, "is unknown", f"Take one of {', '.join(kinds)}.")
    return [_made(kinds[name], values) for name, values in wanted.items()]


def _made(kind: type, values: dict[str, Any]) -> Any:
    known = [field.name for field in dataclasses.fields(kind) if field.init]
    for name in values.keys() - set(known):
        raise ConfigError(f"{kind.__name__}.{name}", values[name], "no such field", f"Fields: {', '.join(known)}.")
    return kind(**values)


def _kinds() -> dict[str, type]:
    """The plugins by the names that this verb has for them."""
    from nemo_resiliency_plugins.plugins.checkpoint import CheckpointPlugin
    from nemo_resiliency_plugins.plugins.fault_tolerance import FaultTolerancePlugin
    from nemo_resiliency_plugins.plugins.inprocess import InProcessRestartPlugin
    from nemo_resiliency_plugins.plugins.preemption import PreemptionPlugin
    from nemo_resiliency_plugins.plugins.rerun import RerunStateMachinePlugin
    from nemo_resiliency_plugins.plugins.straggler import StragglerPlugin

    return {
        "fault-tolerance": FaultTolerancePlugin,
        "preemption": PreemptionPlugin,
        "inprocess": InProcessRestartPlugin,
        "checkpoint": CheckpointPlugin,
        "straggler": StragglerPlugin,
        "rerun": RerunStateMachinePlugin,
    }


def _pair(option: str, text: str) -> tuple[str, str]:
    name, given, value = text.partition("=")
    if not given or not name:
        raise ConfigError(option, text, "must be NAME=VALUE", "Give both.")
    return name, value
