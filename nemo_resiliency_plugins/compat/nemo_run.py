"""What NeMo-Run needs mended. Each quirk says in which versions it was seen and when it can go."""

from __future__ import annotations

import functools
import importlib.metadata
from typing import Any

COMING_BACK = ("PREEMPTED", "NODE_FAIL", "REQUEUED")
STATUS_TRIED = ("0.11",)
"""The versions whose scheduler :func:`mend_status` knows."""


def mend_status() -> None:
    """Let the status of a job that Slurm is bringing back be pending; NeMo-Run's own is FAILED, which ends a wait.

    Between a preemption and the next start ``sacct`` shows the last attempt alone for some seconds (Slurm 22.05);
    ``squeue`` knows that the job goes on. Can go when NeMo-Run asks for that itself; another version is left alone.
    """
    from nemo_run.run.torchx_backend.schedulers.slurm import SlurmTunnelScheduler as Scheduler

    version = importlib.metadata.version("nemo_run")
    if version.startswith(STATUS_TRIED) and not hasattr(Scheduler.describe, "__wrapped__"):
        Scheduler.describe = _telling_what_comes_back(Scheduler.describe)


def _telling_what_comes_back(describe: Any) -> Any:
    from torchx.specs import AppState

    @functools.wraps(describe)
    def mended(scheduler: Any, app_id: str) -> Any:
        told = describe(scheduler, app_id)
        if told is not None and told.state == AppState.FAILED and _is_queued(scheduler, app_id):
            told.state = AppState.PENDING
            for status in told.roles_statuses:
                for replica in status.replicas:
                    replica.state = AppState.PENDING
        return told

    return mended


def _is_queued(scheduler: Any, app_id: str) -> bool:
    """Whether the job waits for its next start, or its nodes are being cleaned up before one."""
    asked = scheduler.tunnel.run(f"squeue --noheader --jobs={app_id} --states=all --format=%T", warn=True, hide=True)
    states = set(str(asked.stdout).split())
    return bool(states & {"PENDING", "REQUEUED", "COMPLETING", "RUNNING", "CONFIGURING"})
