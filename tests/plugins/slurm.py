"""An executor of a cluster that need not be there, and what its job would be told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nemo_run as run

CODE_IS_THERE = run.Packager(symlink_from_remote_dir="/cluster/code")
"""So that a task may name a script that is nowhere here."""


def make(tmp_path: Path, **fields: Any) -> run.SlurmExecutor:
    tunnel = run.LocalTunnel(job_dir="/cluster/experiment")
    given = {
        "nodes": 2,
        "ntasks_per_node": 4,
        "time": "01:00:00",
        "tunnel": tunnel,
        "packager": CODE_IS_THERE,
        **fields,
    }
    return run.SlurmExecutor(account="a", job_dir=str(tmp_path / "job"), **given)


def transformed(executor: run.SlurmExecutor) -> Path:
    """The ``nrp`` directory after NeMo-Run has asked for the node script."""
    executor.create_job_dir()
    assert executor.launcher.transform(["python", "train.py"]) is not None
    return Path(executor.job_dir) / "nrp"


def told(executor: run.SlurmExecutor) -> dict[str, Any]:
    """The configuration file of the job."""
    content: dict[str, Any] = json.loads((transformed(executor) / "config.json").read_text())
    return content


def policy(executor: run.SlurmExecutor) -> str:
    """The retry policy of the batch script."""
    return (transformed(executor) / "retry_policy.sh").read_text()
