"""Tasks that bring a launcher of their own: under ours every rank would start all of them once more."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import nemo_run as run

from nemo_resiliency_plugins.errors import ConflictError
from nemo_resiliency_plugins.plugins.edits import ToldOnce

PROGRAMS = ("torchrun", "ft_launcher", "accelerate", "deepspeed", "srun", "mpirun", "mpiexec")
MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
IN_A_SHELL = re.compile(
    rf"^\s*((exec|time)\s+|\w+=\S*\s+)*(\S*/)?"
    rf"(?P<name>({'|'.join(PROGRAMS)})|python[\d.]*\s+-m\s+({'|'.join(map(re.escape, MODULES))}))(\s|$)",
    re.MULTILINE,
)
"""At the beginning of a line: what stands elsewhere may be text."""


def nested_launchers(owner: str, task: run.Script | run.Partial, ranks: int) -> Iterator[ToldOnce]:
    """A note, aloud, on a launcher that would be a node's only rank.

    Raises:
        ConflictError: ``ranks`` of them would start on each node.
    """
    found = own_launcher(task) if isinstance(task, run.Script) else None
    if found is None:
        return
    rule = f"starts the ranks with a launcher already, and each of them would start {found}"
    if ranks > 1:
        remedy = "Give what one rank runs, such as run.Script('train.py', entrypoint='python')"
        raise ConflictError("task", found, f"{owner} {rule}: {ranks} on each node", remedy)
    yield ToldOnce(owner, f"{rule}. The ranks that it starts are not watched", warn=True)


def own_launcher(task: run.Script) -> str | None:
    """The launcher that a script starts, as it is called there."""
    if task.inline:
        match = IN_A_SHELL.search(task.inline)
        return match["name"] if match else None
    words = [*shlex.split(task.entrypoint), task.path]
    names = [Path(word).name for word in (words[0], *([] if task.m else [task.path]))]
    return next((name for name in names if name in PROGRAMS), next((word for word in words if word in MODULES), None))
