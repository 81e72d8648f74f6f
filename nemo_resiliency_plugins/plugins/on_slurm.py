"""FaultTolerancePlugin on SlurmExecutor: the node launcher, and the retry policy in the batch script."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import nemo_run as run

from nemo_resiliency_plugins.config import FaultToleranceConfig
from nemo_resiliency_plugins.contract import ENV_STRICT
from nemo_resiliency_plugins.errors import ConfigError, ConflictError, UnsupportedError
from nemo_resiliency_plugins.plugins import shipping
from nemo_resiliency_plugins.plugins.edits import (
    AddSetupLines,
    AddSrunArguments,
    Edit,
    RegisterTask,
    SetField,
    UseLauncher,
)
from nemo_resiliency_plugins.plugins.launcher import take_over
from nemo_resiliency_plugins.plugins.node_launcher import NRP, RUN_DIR, NodeLauncher, task_key
from nemo_resiliency_plugins.slurm.policy import FACTS, RULES
from nemo_resiliency_plugins.slurm.render import render

if TYPE_CHECKING:
    from nemo_resiliency_plugins.plugins.fault_tolerance import FaultTolerancePlugin

MIN_SECONDS_LEFT = 120
MAX_EXCLUSIONS = 3
SURVIVE_A_LOST_NODE = ("--no-kill", "--kill-on-bad-exit=0")
KEEPS_BAD_EXIT = re.compile(r"(-K[= ]?0|--kill-on-bad-exit[= ]0)")


def plan(plugin: FaultTolerancePlugin, task: run.Script | run.Partial, executor: run.SlurmExecutor) -> Iterator[Edit]:
    """The edits; see the module."""
    owner = type(plugin).__name__
    refuse_what_cannot_work(plugin, executor)
    yield from shipping.check(owner, task, executor)
    wanted = take_over(executor.launcher, node_launcher(plugin, executor))
    yield UseLauncher(owner, wanted)
    yield SetField(owner, "ntasks_per_node", 1)
    yield AddSetupLines(owner, retry_policy(plugin, executor))
    yield SetField(owner, "retries", 0)
    if plugin.spare_nodes:
        yield SetField(owner, "additional_parameters", {**(executor.additional_parameters or {}), "no_kill": True})
        yield AddSrunArguments(owner, SURVIVE_A_LOST_NODE, plugin.trains)
    if executor.run_as_group:
        yield RegisterTask(owner, task_key(task))


def refuse_what_cannot_work(plugin: FaultTolerancePlugin, executor: run.SlurmExecutor) -> None:
    """Raises UnsupportedError or ConflictError, before anything is changed."""
    if executor.heterogeneous:
        remedy = "Use one kind of nodes, heterogeneous=False."
        raise UnsupportedError("executor.heterogeneous", True, "heterogeneous jobs are not supported", remedy)
    if executor.container_image is None and RUN_DIR in executor.tunnel.job_dir:
        rule = f"NeMo-Run 0.11 replaces {RUN_DIR} wherever it stands in a batch script that uses no container"
        raise UnsupportedError("tunnel.job_dir", executor.tunnel.job_dir, rule, "Choose a directory without it.")
    if executor.retries not in (0, plugin.num_job_retries_on_failure):
        rule = f"num_job_retries_on_failure={plugin.num_job_retries_on_failure} says something else"
        raise ConflictError("executor.retries", executor.retries, rule, "Set the number in the plugin only")
    tasks = len(executor.resource_group) or (plugin.trains + 1 if executor.run_as_group else 1)
    if plugin.trains >= tasks:
        rule = f"there is no such task among {tasks}"
        raise ConfigError("FaultTolerancePlugin.trains", plugin.trains, rule, "Count the tasks of the group from 0.")
    if plugin.spare_nodes >= executor.nodes:
        rule = f"of executor.nodes={executor.nodes} at least one node must do the work"
        remedy = "Ask for more nodes: executor.nodes counts the spare ones too."
        raise ConfigError("FaultTolerancePlugin.spare_nodes", plugin.spare_nodes, rule, remedy)
    arguments = " ".join(word for holder in (executor, *executor.resource_group) for word in holder.srun_args or [])
    if KEEPS_BAD_EXIT.search(arguments) and not plugin.spare_nodes:
        rule = "without spare nodes a lost node would leave the others waiting in collectives"
        raise ConflictError("executor.srun_args", arguments, rule, "Leave --kill-on-bad-exit at 1")


def node_launcher(plugin: FaultTolerancePlugin, executor: run.SlurmExecutor) -> NodeLauncher:
    present = executor.launcher
    settings = {
        "launcher": "ft_launcher",
        "nnodes": f"{executor.nodes - plugin.spare_nodes}:{executor.nodes}",
        "nproc": present.node["nproc"]
        if isinstance(present, NodeLauncher)
        else ranks_per_node(executor, plugin.trains),
        "start_skew_s": plugin.start_skew_s,
        "options": [
            f"--max-restarts={plugin.num_in_job_restarts}",
            f"--monitor-interval={plugin.monitor_interval:g}",
            f"--workers-stop-timeout={plugin.workers_stop_timeout:g}",
            f"--term-timeout={plugin.term_timeout:g}",
        ],
    }
    return NodeLauncher(
        job_dir=executor.job_dir,
        node=settings,
        config={FaultToleranceConfig.PLUGIN: plugin.told_to_the_job()},
        monitor=plugin.monitor_settings(),
        variables={ENV_STRICT: "true"} if plugin.strict else {},
        max_restarts=plugin.num_in_job_restarts,
        initial_rank_heartbeat_timeout=plugin.initial_rank_heartbeat_timeout,
        rank_heartbeat_timeout=plugin.rank_heartbeat_timeout,
        trains=plugin.trains,
    )


def ranks_per_node(executor: run.SlurmExecutor, trains: int) -> int:
    """What the user asked for as tasks; in a group of several executors, that of the task that trains."""
    if executor.resource_group:
        request = executor.resource_group[trains]
        return int(request.gpus_per_node or request.ntasks_per_node)
    return int(executor.nproc_per_node())


def retry_policy(plugin: FaultTolerancePlugin, executor: run.SlurmExecutor) -> str:
    """The policy's part of the batch script."""
    directory = Path(executor.tunnel.job_dir) / Path(executor.job_dir).name / NRP
    return render(
        "retry_policy.sh.j2",
        directory=directory,
        max_failures=plugin.num_job_retries_on_failure,
        max_attempts=plugin.max_job_attempts,
        max_exclusions=MAX_EXCLUSIONS,
        min_seconds_left=MIN_SECONDS_LEFT,
        requeue=plugin.num_job_retries_on_failure > 0,
        codes=[code for code in FACTS["code"] if code != "other"],
        rules=RULES,
    )
