"""In-process restart on Slurm without NeMo-Run: what submitit needs to be told for a function of the user's."""

from __future__ import annotations

import shlex
from typing import Any

VARIABLES = {"TORCH_CPP_LOG_LEVEL": "error", "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0", "NCCL_NVLS_ENABLE": "0"}
"""What NVRx's documentation asks for; the first is read when torch is loaded."""
SRUN_ARGS = ("--no-kill", "--kill-on-bad-exit=0", "--wait=0")


def submitit_parameters(directory: str) -> dict[str, Any]:
    """For ``update_parameters`` of submitit's ``AutoExecutor``: a task a rank, and a lost one does not end the others.

    The submitted function calls ``runtime.inprocess(train, config)()``. Nothing outlives a rank there to take care of
    its node, so the job goes on as long as a task of the first node lives: ``granularity="rank"`` fits better.
    A command that is started by a node script has no such limit, and the retry policy: see ``plugins.plain_slurm``.

    Args:
        directory: on a file system that all nodes share; each job gets a directory below for events and its verdict.
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
