"""Nodes of a Slurm job, without Slurm: what the plugin writes for them and the variables that ``srun`` sets."""

from __future__ import annotations

import os
from pathlib import Path

import nemo_run as run

from nemo_resiliency_plugins.contract import CONFIG_FILE, ENV_CONFIG, ENV_DIR, ENV_JOB_ID
from nemo_resiliency_plugins.plugins.base import ResiliencyPlugin
from nemo_resiliency_plugins.runtime.rendezvous import ALLOW_LOOPBACK

JOB_ID = f"versions{os.getpid()}"
"""Another one for each run of the tests: a node kills what it finds of its job when it ends."""
SEVERAL_ON_A_HOST = {"NVRX_ENABLE_MULTI_LAUNCHERS_PER_NODE": "1", ALLOW_LOOPBACK: "1"}


def write_job(
    root: Path, *plugins: ResiliencyPlugin, nodes: int, ranks_per_node: int, launcher: str | None = None
) -> None:
    """Write into ``root/nrp`` what the node script of a submitted job finds there."""
    tunnel = run.LocalTunnel(job_dir=str(root))
    executor = run.SlurmExecutor(account="a", tunnel=tunnel, nodes=nodes, ntasks_per_node=ranks_per_node)
    executor.job_dir, executor.launcher = str(root), launcher
    for plugin in plugins:
        plugin.setup(run.Script("/unused", entrypoint="python"), executor)
    executor.launcher.transform(["python", "unused"])


def node_variables(root: Path, job_id: str, number: int, count: int) -> dict[str, str]:
    """What Slurm and the node script set for node ``number`` of ``count``."""
    ours = {ENV_DIR: str(root / "nrp"), ENV_JOB_ID: job_id, ENV_CONFIG: str(root / "nrp" / CONFIG_FILE)}
    own = {"SLURM_NODEID": number, "SLURM_PROCID": number, "SLURM_NNODES": count, "SLURM_JOB_NUM_NODES": count}
    # 0.5.0 does not start without the two names when there is a job ID.
    names = {"SLURM_JOB_ID": job_id, "SLURM_JOB_NAME": "job", "SLURM_CLUSTER_NAME": "cluster"}
    shared = {**names, "SLURM_TASKS_PER_NODE": f"1(x{count})", **SEVERAL_ON_A_HOST}
    return {**ours, **shared, **{name: str(value) for name, value in own.items()}}
