"""Plugin sets: lists of plugins that fit together, each made from a smaller one by changing what differs.

In every set the plugin of hangs and crashes comes first, then preemption, checkpoints, and slow ranks.
"""

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
    StragglerPlugin,
)

__all__ = ["fast_recovery", "fault_drill", "in_process", "preemptible", "production", "with_fields"]

Plugins = list[run.Plugin]
PREEMPT_TIME_S = 120
REPORTS_TO_CONFIRM = 3
STARTS_WITHOUT_PROGRESS = 100


def production(local_directory: str | None = None, local_every: int | None = None) -> Plugins:
    """For long runs: learned timeouts, preemption, asynchronous checkpoints, and slow nodes are left.

    Args:
        local_directory: on each node's own disk, for a second tier of checkpoints; None: no such tier.
        local_every: steps between saves to that tier.
    """
    return [
        FaultTolerancePlugin(),
        PreemptionPlugin(preempt_time=PREEMPT_TIME_S),
        CheckpointPlugin(
            async_save=True,
            non_persistent_local_ckpt_dir=local_directory,
            non_persistent_save_interval=local_every,
        ),
        StragglerPlugin(stop_if_detected=True, reports_to_confirm=REPORTS_TO_CONFIRM),
    ]


def preemptible(grace_period_s: float = 60) -> Plugins:
    """For preemptible partitions and short time limits: it comes back often, and never gives a node up by itself.

    Args:
        grace_period_s: seconds that the site leaves a preempted job.
    """
    plugins = with_fields(production(), StragglerPlugin, stop_if_detected=False)
    plugins = with_fields(plugins, FaultTolerancePlugin, max_job_attempts=STARTS_WITHOUT_PROGRESS)
    fields = {"grace_period_s": grace_period_s, "max_job_attempts": STARTS_WITHOUT_PROGRESS}
    return with_fields(plugins, PreemptionPlugin, **fields)


def fast_recovery(local_directory: str | None = None, local_every: int = 10) -> Plugins:
    """For runs with steps of seconds: short limits, many in-job restarts, and frequent local checkpoints.

    Args:
        local_directory: on each node's own disk; None leaves it to the script, and a warning says so.
        local_every: steps between saves to that directory.
    """
    return with_fields(
        production(local_directory, local_every),
        FaultTolerancePlugin,
        initial_rank_heartbeat_timeout=600,
        rank_heartbeat_timeout=60,
        timeout_floor_s=10,
        workload_check_interval=0.25,
        workers_stop_timeout=1,
        num_in_job_restarts=10,
    )


def fault_drill(faults: str = "kill@1:23") -> Plugins:
    """``production``, and faults that are injected to see it recover.

    Args:
        faults: such as ``kill@1:23,hang@0:42``; the first number is the rank, the second one the step.
    """
    return with_fields(production(), FaultTolerancePlugin, fault_script=faults)


def in_process(active_world_size: int | None = None) -> Plugins:
    """``production`` with in-process restart (Slurm) in the place of the launcher's restarts.

    The script hands its train function to ``runtime.inprocess``.

    Args:
        active_world_size: ranks that train, the others are hot spares; None: all of them.
    """
    _, *others = production()
    return [InProcessRestartPlugin(active_world_size=active_world_size), *others]


def with_fields(plugins: Sequence[run.Plugin], kind: type, **fields: Any) -> Plugins:
    """A copy of the list, in which the plugin of class ``kind`` has other values for ``fields``.

    Raises:
        ConfigError: no plugin of the list is of that class, or a value breaks its rule.
        TypeError: the class has no such field.
    """
    if not any(isinstance(plugin, kind) for plugin in plugins):
        present = ", ".join(type(plugin).__name__ for plugin in plugins)
        raise ConfigError("plugins", present, f"hold no {kind.__name__}", "Add one to the list, or choose another set.")
    return [_changed(plugin, fields) if isinstance(plugin, kind) else plugin for plugin in plugins]


def _changed(plugin: Any, fields: dict[str, Any]) -> Any:
    return dataclasses.replace(plugin, **fields)
