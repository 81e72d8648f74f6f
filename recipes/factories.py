"""The plugin sets, executors and packagers under the names that NeMo-Run's command lines know them by.

``nemorun`` finds them through the entry point ``nemo_run.cli``; a script with a ``run.cli.main`` of its own calls
:func:`register` before.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nemo_run as run
from nemo_run.cli.cli_parser import type_parser
from nemo_run.config import get_nemorun_home

from nemo_resiliency_plugins import (
    CheckpointPlugin,
    FaultTolerancePlugin,
    InProcessRestartPlugin,
    PreemptionPlugin,
    RerunStateMachinePlugin,
    StragglerPlugin,
)
from nemo_resiliency_plugins.recipes import own_script, plugin_sets
from nemo_resiliency_plugins.recipes.plugin_sets import Plugins

__all__ = ["EXECUTORS", "PACKAGERS", "PLUGIN_SETS", "local", "register", "ship_nothing", "slurm", "slurm_over_ssh"]

PLUGINS = (
    CheckpointPlugin,
    FaultTolerancePlugin,
    InProcessRestartPlugin,
    PreemptionPlugin,
    RerunStateMachinePlugin,
    StragglerPlugin,
)


def local() -> run.Config[run.LocalExecutor]:
    """Ranks on this machine."""
    return run.Config(run.LocalExecutor, ntasks_per_node=own_script.LOCAL_RANKS)


def slurm() -> run.Config[run.SlurmExecutor]:
    """Slurm from a machine of the cluster; ``account`` is still to be given."""
    # NeMo-Run 0.11 finds its batch script in this directory alone.
    tunnel = run.Config(run.LocalTunnel, job_dir=str(Path(get_nemorun_home(), "experiments")))
    return run.Config(run.SlurmExecutor, tunnel=tunnel)


def slurm_over_ssh() -> run.Config[run.SlurmExecutor]:
    """Slurm from elsewhere; ``account``, ``tunnel.host``, ``tunnel.user`` and ``tunnel.job_dir`` are to be given."""
    return run.Config(run.SlurmExecutor, tunnel=run.Config(run.SSHTunnel))


def ship_nothing() -> run.Config[run.Packager]:
    """For code that lies where the job sees it, in its image or on shared storage."""
    return run.Config(run.Packager)


PLUGIN_SETS = (
    plugin_sets.production,
    plugin_sets.preemptible,
    plugin_sets.fast_recovery,
    plugin_sets.fault_drill,
    plugin_sets.in_process,
)
EXECUTORS = {local: run.LocalExecutor, slurm: run.SlurmExecutor, slurm_over_ssh: run.SlurmExecutor}
PACKAGERS = {ship_nothing: run.Packager}


def configs(plugin_set: Callable[..., Plugins]) -> Callable[..., list[Any]]:
    """The plugin set as NeMo-Run wants it of a factory."""

    @functools.wraps(plugin_set)
    def factory(*args: Any, **kwargs: Any) -> list[Any]:
        return [plugin.to_config() for plugin in plugin_set(*args, **kwargs)]

    return factory


def teach_type(annotation: Any, hint: Any) -> None:
    """Let NeMo-Run's parser read values for ``annotation``, which stands for the type ``hint``.

    NeMo-Run 0.11 reads neither annotations that are strings, which ``from __future__ import annotations`` makes of
    all, nor ``X | None``. To be removed when ``nemo_run.cli.parse_config`` sets each field of a plugin without it.
    """
    known = typing.Union[typing.get_args(hint)] if isinstance(hint, types.UnionType) else hint  # noqa: UP007
    type_parser.register_parser(annotation)(lambda value, _: type_parser.parse(value, known))


def register() -> None:
    """Make all of this known to NeMo-Run, and let it set the fields of each plugin."""
    for make, target in {**EXECUTORS, **PACKAGERS}.items():
        run.cli.factory(make, target=target)
    for plugin_set in PLUGIN_SETS:
        run.cli.factory(configs(plugin_set), target=run.Plugin)
    for plugin in PLUGINS:
        hints = typing.get_type_hints(plugin)
        for field in dataclasses.fields(plugin):
            teach_type(field.type, hints[field.name])
