"""Variables that reach a container although its image sets them too: pyxis lets the image win unless they are named."""

from __future__ import annotations

import nemo_run as run
from nemo_run.core.execution.base import Executor


def name_for_containers(executor: Executor, *variables: str) -> None:
    """Extend the user's own list, of the executor and of each task of a group."""
    if not isinstance(executor, run.SlurmExecutor):
        return
    # NeMo-Run 0.11 copies a group's list to its resource requests before plugins run.
    for holder in (executor, *executor.resource_group):
        if holder.container_image is not None:
            holder.container_env = list(dict.fromkeys([*(holder.container_env or []), *variables]))
