"""In-process restart on Slurm without NeMo-Run: a script for plain ``sbatch``, and what submitit needs to be told."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from nemo_resiliency_plugins.contract import NODE_SECTION, Kind
from nemo_resiliency_plugins.errors import ConfigError
from nemo_resiliency_plugins.slurm.render import render

VARIABLES = {"TORCH_CPP_LOG_LEVEL": "error", "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0", "NCCL_NVLS_ENABLE": "0"}
"""What NVRx's documentation asks for; the first is read when torch is loaded."""
SRUN_ARGS = ("--no-kill", "--kill-on-bad-exit=0", "--wait=0")
START_SKEW_S = 600.0


def sbatch_script(
    command: Sequence[str],
    *,
    directory: str,
    nodes: int,
    tasks_per_node: int,
    fields: Mapping[str, Any] | None = None,
    options: Sequence[str] = (),
    python: str = "python",
) -> str:
    """A batch script that trains under in-process restart.

    Args:
        command: what each rank runs, such as ``["python", "train.py"]``.
        directory: on a file system that all nodes share; each job gets a directory below for events and its verdict.
        fields: of ``InProcessRestartConfig``; ``enabled`` need not be said.
        options: further ones of sbatch, such as ``--time=24:00:00``.
        python: the interpreter on the nodes, which has this package.

    Raises:
        ConfigError: an option that is not one line.
    """
    for option in options:
        if len(option.splitlines()) != 1:
            raise ConfigError("options", option, "must be one line", "Give one option each.")
    node = {
        "kind": Kind.RANK.value,
        "nnodes": f"{nodes}:{nodes}",
        "nproc": tasks_per_node,
        "start_skew_s": START_SKEW_S,
        "options": [],
    }
    config = json.dumps({NODE_SECTION: node, "inprocess": {"enabled": True, **(fields or {})}}, indent=1)
    return render(
        "inprocess.sh.j2",
        nodes=nodes,
        tasks_per_node=tasks_per_node,
        options=list(options),
        variables=VARIABLES,
        directory=directory,
        config=config,
        python=python,
        command=list(command),
    )


def submitit_parameters(directory: str) -> dict[str, Any]:
    """For ``update_parameters`` of submitit's ``AutoExecutor``: a task a rank, and a lost one does not end the others.

    The submitted function calls ``runtime.inprocess(train, config)()``. Nothing outlives a rank there to take care of
    its node, so the job goes on as long as a task of the first node lives: ``granularity="rank"`` fits better.

    Args:
        directory: as for :func:`sbatch_script`.
    """
    first = '"${MASTER_ADDR:-$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)}"'
    return {
        "slurm_srun_args": list(SRUN_ARGS),
        "slurm_additional_parameters": {"no_kill": True},
        "slurm_setup": [
            *(f"export {name}={value}" for name, value in VARIABLES.items()),
            f'export NRP_DIR={shlex.quote(directory)}/"$SLURM_JOB_ID"',
            f"export MASTER_ADDR={first}",
            'export MASTER_PORT="$((15000 + SLURM_JOB_ID % 17000))"',
        ],
    }
