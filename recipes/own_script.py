"""Recipes for a training script of your own."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import nemo_run as run

from nemo_resiliency_plugins import (
    CheckpointPlugin,
    ConfigError,
    FaultTolerancePlugin,
    InProcessRestartPlugin,
    PreemptionPlugin,
    RerunStateMachinePlugin,
    StragglerPlugin,
    UnsupportedError,
)
from nemo_resiliency_plugins.recipes import plugin_sets
from nemo_resiliency_plugins.recipes.plugin_sets import Plugins

__all__ = ["in_process_restart", "megatron_bridge", "script"]

Recipe = tuple[run.Script, run.Executor, Plugins]
LOCAL_RANKS = 2
OVERRIDES = "megatron_bridge"
TELLING = (CheckpointPlugin, FaultTolerancePlugin, PreemptionPlugin, RerunStateMachinePlugin, StragglerPlugin)
"""Plugins that know overrides."""


def script(
    path: str,
    args: Sequence[str] = (),
    *,
    executor: run.Executor | None = None,
    plugins: Plugins | None = None,
    module: bool = False,
) -> Recipe:
    """Any training script, of DDP or FSDP.

    Args:
        path: as the job will see it: absolute, or below what the executor's packager ships.
        args: of the script.
        executor: SlurmExecutor or LocalExecutor; None: two ranks on this machine.
        plugins: None is ``production()``, on this machine without its end of a run that has a slow rank.
        module: ``path`` is the dotted name of a module.
    """
    task = run.Script(path=path, m=module, entrypoint="python", args=list(args))
    executor = executor or local(LOCAL_RANKS)
    return task, executor, _usual_plugins(executor) if plugins is None else list(plugins)


def megatron_bridge(
    path: str, args: Sequence[str] = (), *, executor: run.Executor | None = None, plugins: Plugins | None = None
) -> Recipe:
    """A pretraining script of Megatron-Bridge that takes hydra-style overrides, by which each plugin tells it.

    Its configuration needs the sections ``ft`` and ``nvrx_straggler``, which Megatron-Bridge leaves at None: set
    ``cfg.ft = FaultToleranceConfig()`` and ``cfg.nvrx_straggler = NVRxStragglerDetectionConfig()`` before the
    overrides are applied. The arguments are those of :func:`script`.

    Raises:
        UnsupportedError: in-process restart, which that script would know nothing of.
    """
    task, executor, plugins = script(path, args, executor=executor, plugins=plugins)
    return task, executor, [_telling_megatron_bridge(plugin) for plugin in plugins]


def in_process_restart(
    path: str,
    args: Sequence[str] = (),
    *,
    executor: run.SlurmExecutor,
    active_world_size: int | None = None,
    plugins: Plugins | None = None,
) -> Recipe:
    """A script that hands its train function to ``runtime.inprocess``.

    Args:
        path, args: see :func:`script`.
        executor: one task a rank, and no launcher.
        active_world_size: ranks that train, the others are hot spares; None: all of them.
        plugins: None is ``in_process(active_world_size)``.

    Raises:
        ConfigError: ``active_world_size`` beside plugins that say it already.
    """
    if plugins is not None and active_world_size is not None:
        remedy = "Give it to InProcessRestartPlugin."
        raise ConfigError("active_world_size", active_world_size, "plugins are given as well", remedy)
    chosen = plugin_sets.in_process(active_world_size) if plugins is None else plugins
    return script(path, args, executor=executor, plugins=chosen)


def local(ranks: int) -> run.LocalExecutor:
    """So many ranks on this machine."""
    return run.LocalExecutor(ntasks_per_node=ranks)


def _usual_plugins(executor: run.Executor) -> Plugins:
    plugins = plugin_sets.production()
    if isinstance(executor, run.LocalExecutor):  # there is no other node to go on with
        plugins = plugin_sets.with_fields(plugins, StragglerPlugin, stop_if_detected=False)
    return plugins


def _telling_megatron_bridge(plugin: Any) -> Any:
    if isinstance(plugin, InProcessRestartPlugin):
        rule = "is for scripts that call runtime.inprocess; Megatron-Bridge has its own way, cfg.inprocess_restart"
        raise UnsupportedError("plugins", type(plugin).__name__, rule, "Leave it out.")
    return dataclasses.replace(plugin, overrides=OVERRIDES) if isinstance(plugin, TELLING) else plugin
