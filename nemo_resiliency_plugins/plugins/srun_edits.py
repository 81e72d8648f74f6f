"""Edits of the ``srun`` that starts the task."""

from __future__ import annotations

import dataclasses
from typing import Any

from nemo_resiliency_plugins.errors import ConflictError
from nemo_resiliency_plugins.plugins.edits import Edit, Target
from nemo_resiliency_plugins.plugins.slurm_request import split


@dataclasses.dataclass(frozen=True)
class WaitForTheLast(Edit):
    """Seconds that ``srun`` waits from the end of the first task for that of the last; of several the longest holds."""

    seconds: int
    """0: without limit."""
    group_index: int

    def check(self, target: Target) -> None:
        for holder in self._holders(target):
            for value in split(holder.srun_args or [], "wait")[0]:
                if not value.isdecimal():
                    rule = f"srun takes whole seconds, and {self.owner} wants at least {self.seconds}"
                    raise ConflictError("executor.srun_args", f"--wait={value}", rule, "Give seconds, or leave it out")

    def apply(self, target: Target) -> None:
        for holder in self._holders(target):
            given, others = split(holder.srun_args or [], "wait")
            waits = [self.seconds, *map(int, given)]
            holder.srun_args = [*others, f"--wait={0 if 0 in waits else max(waits)}"]

    def _holders(self, target: Target) -> list[Any]:
        # NeMo-Run 0.11 copies a group's options to its resource requests before plugins run.
        return [target.executor, *target.executor.resource_group[self.group_index : self.group_index + 1]]

    def __str__(self) -> str:
        return f"srun --wait={self.seconds}"
