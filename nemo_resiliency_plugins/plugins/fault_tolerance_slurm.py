"""FaultTolerancePlugin on SlurmExecutor: what it wants of the node launcher."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import nemo_run as run

from nemo_resiliency_plugins.config import FaultToleranceConfig, InProcessRestartConfig
from nemo_resiliency_plugins.config.rules import changed_fields
from nemo_resiliency_plugins.contract import Kind
from nemo_resiliency_plugins.errors import ConfigError, ConflictError, UnsupportedError
from nemo_resiliency_plugins.plugins import on_slurm
from nemo_resiliency_plugins.plugins.edits import AddSrunArguments, Edit, Note, SetField

if TYPE_CHECKING:
    from nemo_resiliency_plugins.plugins.fault_tolerance import FaultTolerancePlugin

SURVIVE_A_LOST_NODE = ("--no-kill", "--kill-on-bad-exit=0")
KEEPS_BAD_EXIT = re.compile(r"(-K[= ]?0|--kill-on-bad-exit[= ]0)")


def plan(plugin: FaultTolerancePlugin, task: run.Script | run.Partial, executor: run.SlurmExecutor) -> Iterator[Edit]:
    """The edits; see the module."""
    owner = type(plugin).__name__
    yield from on_slurm.plan(
        owner, task, executor, claims=claims(plugin), trains=plugin.trains, strict=plugin.strict, kind=Kind.FT
    )
    refuse_what_cannot_work(plugin, executor)
    yield from ahead_of_no_restart(plugin, owner)
    if plugin.spare_nodes:
        yield SetField(owner, "additional_parameters", {**(executor.additional_parameters or {}), "no_kill": True})
        yield AddSrunArguments(owner, SURVIVE_A_LOST_NODE, plugin.trains)


def ahead_of_no_restart(plugin: FaultTolerancePlugin, owner: str) -> Iterator[Edit]:
    """A note, aloud; under ``strict`` raises UnsupportedError."""
    imports = changed_fields(plugin).get("prestart_imports")
    if not imports or plugin.num_in_job_restarts:
        return
    rule, remedy = "has no effect with num_in_job_restarts=0", "Allow restarts in the job, or leave it at its default."
    if plugin.strict:
        raise UnsupportedError(f"{owner}.prestart_imports", imports, rule, remedy)
    yield Note(owner, f"prestart_imports={imports!r} {rule}. {remedy}", warn=True)


def refuse_what_cannot_work(plugin: FaultTolerancePlugin, executor: run.SlurmExecutor) -> None:
    """Raises ConfigError or ConflictError, before anything is changed."""
    refuse_with_in_process_restart(executor)
    if executor.retries not in (0, plugin.num_job_retries_on_failure):
        rule = f"num_job_retries_on_failure={plugin.num_job_retries_on_failure} says something else"
        raise ConflictError("executor.retries", executor.retries, rule, "Set the number in the plugin only")
    if plugin.spare_nodes >= executor.nodes:
        rule = f"of executor.nodes={executor.nodes} at least one node must do the work"
        remedy = "Ask for more nodes: executor.nodes counts the spare ones too."
        raise ConfigError("FaultTolerancePlugin.spare_nodes", plugin.spare_nodes, rule, remedy)
    arguments = " ".join(word for holder in (executor, *executor.resource_group) for word in holder.srun_args or [])
    if KEEPS_BAD_EXIT.search(arguments) and not plugin.spare_nodes:
        rule = "without spare nodes a lost node would leave the others waiting in collectives"
        raise ConflictError("executor.srun_args", arguments, rule, "Leave --kill-on-bad-exit at 1")


def refuse_with_in_process_restart(executor: run.SlurmExecutor) -> None:
    """Raises ConflictError: the ranks restart in their processes already."""
    if InProcessRestartConfig.PLUGIN in getattr(executor.launcher, "config", {}):
        rule = "in-process restart is there: ft_launcher would restart ranks beside it, which NVRx gave up in 0.6"
        raise ConflictError("plugins", "FaultTolerancePlugin", rule, "Use one of the two plugins")


def claims(plugin: FaultTolerancePlugin) -> dict[str, Any]:
    """Fields and entries of the node launcher."""
    options = [
        f"--monitor-interval={plugin.monitor_interval:g}",
        f"--workers-stop-timeout={plugin.workers_stop_timeout:g}",
        f"--term-timeout={plugin.term_timeout:g}",
    ]
    return {
        "max_restarts": plugin.num_in_job_restarts,
        "initial_rank_heartbeat_timeout": plugin.initial_rank_heartbeat_timeout,
        "rank_heartbeat_timeout": plugin.rank_heartbeat_timeout,
        "start_skew_s": plugin.start_skew_s,
        "spare_nodes": plugin.spare_nodes,
        "options": options,
        "prestart": plugin.prestart_imports if plugin.num_in_job_restarts else [],
        f"config.{FaultToleranceConfig.PLUGIN}": plugin.told_to_the_job(),
        "monitor": plugin.monitor_settings(),
        "policy.max_failures": plugin.num_job_retries_on_failure,
        "policy.max_attempts": plugin.max_job_attempts,
    }
