"""What the user asks of Slurm: one reading of the executor's fields, ``additional_parameters`` and ``srun_args``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import nemo_run as run

from nemo_resiliency_plugins.config.rules import A_COUNT, A_STEP, Rule, optional
from nemo_resiliency_plugins.errors import ConfigError, ConflictError
from nemo_resiliency_plugins.plugins.edits import Edit, Note, SetField

SHORT = {"wait": "W", "ntasks": "n", "nodes": "N"}
"""Letters of srun's options; each of them takes a value."""
WORDS: Rule = (
    lambda value: isinstance(value, (list, tuple)) and all(isinstance(word, str) for word in value),
    "must be a list of strings",
    "Give a list, a string for each word.",
)
TEXT: Rule = (lambda value: isinstance(value, str), "must be a string", "Give one string.")
GPUS: Rule = (
    lambda value: A_COUNT[0](value) or re.fullmatch(r"([\w.-]+:)?\d+", str(value)) is not None,
    "must be a number of GPUs, or TYPE:NUMBER",
    "Give an int such as 8.",
)
RULES: dict[str, Rule] = {
    "nodes": A_STEP,
    "ntasks_per_node": A_STEP,
    "gpus_per_node": optional(GPUS),
    "gpus_per_task": optional(GPUS),
    "torchrun_nproc_per_node": optional(A_COUNT),
    "cpus_per_task": optional(A_COUNT),
    "retries": A_COUNT,
    "signal": optional(TEXT),
    "setup_lines": optional(TEXT),
    "srun_args": optional(WORDS),
    "container_env": optional(WORDS),
    "additional_parameters": optional((lambda value: isinstance(value, dict), "must be a dict", "Give a dict.")),
}
"""NeMo-Run (0.11) checks none of them, and takes the first digit of a number that is a string."""


def check(executor: run.SlurmExecutor) -> None:
    """Raises ConfigError for a field that is of another kind than it should be."""
    for holder in (executor, *executor.resource_group):
        for name, (accepts, rule, remedy) in RULES.items():
            value = getattr(holder, name, None)
            if hasattr(holder, name) and not accepts(value):
                raise ConfigError(f"executor.{name}", value, rule, remedy)


def of_training(executor: run.SlurmExecutor, trains: int) -> Any:
    """Who asks for the resources of the task that trains: the executor or, in a group of several, one of theirs."""
    return executor.resource_group[trains] if executor.resource_group else executor


def ranks_per_node(executor: run.SlurmExecutor, trains: int) -> int:
    """What the user asked for as tasks, or with a single task as GPUs; in a group, for the task that trains."""
    request = of_training(executor, trains)
    if executor.torchrun_nproc_per_node and trains == 0:
        return int(executor.torchrun_nproc_per_node)
    if request.ntasks_per_node > 1:
        return int(request.ntasks_per_node)
    return number(request.gpus_per_node) or number(request.gpus_per_task) or 1


def number(gpus: int | str | None) -> int:
    """Of GPUs that may be named by their type."""
    return int(str(gpus or 0).rpartition(":")[2])


def one_task_a_node(owner: str, executor: run.SlurmExecutor) -> Iterator[Edit]:
    """The edits by which one task gets what the ranks of its node would have had as tasks of their own.

    Under a launcher of NeMo-Run's the user has asked for one task already.
    """
    tasks = executor.ntasks_per_node
    for name in ("cpus_per_task", "gpus_per_task") if tasks > 1 and executor.launcher is None else ():
        share = getattr(executor, name)
        if share is not None:
            kind, _, count = str(share).rpartition(":")
            whole = int(count) * tasks
            yield SetField(owner, name, f"{kind}:{whole}" if kind else whole)
            text = f"{name}={share} of {tasks} ranks becomes {whole}: a node has one task, which starts its ranks"
            yield Note(owner, text, warn=True)
    yield SetField(owner, "ntasks_per_node", 1)


def refuse_contradictions(executor: run.SlurmExecutor, trains: int, *, one_task: bool) -> None:
    """What is asked for beside the executor's fields wins over them, and the launchers would wait for others.

    Raises:
        ConflictError: it says something else.
    """
    nodes = executor.nodes
    expected = {"nodes": nodes, **({"ntasks-per-node": 1, "ntasks": nodes} if one_task else {})}
    for name, wanted in expected.items():
        for place, given in _given(executor, trains, name):
            if str(given) != str(wanted):
                rule = f"the job needs {name}={wanted}: executor.nodes={nodes}{', a task a node' if one_task else ''}"
                remedy = f"Remove {name} there, and say it by executor.nodes and executor.ntasks_per_node"
                raise ConflictError(place, f"{name}={given}", rule, remedy)


def _given(executor: run.SlurmExecutor, trains: int, name: str) -> Iterator[tuple[str, Any]]:
    for key, value in (executor.additional_parameters or {}).items():
        if key.replace("_", "-") == name:
            yield "executor.additional_parameters", value
    for value in split(of_training(executor, trains).srun_args or [], name)[0]:
        yield "executor.srun_args", value


def split(words: Sequence[str], name: str) -> tuple[list[str], list[str]]:
    """The values that srun's option ``name`` has been given, in any spelling, and the other words."""
    values, others, rest = [], [], iter(words)
    letter = f"-{SHORT[name]}" if name in SHORT else None
    for word in rest:
        if word in (f"--{name}", letter):
            values.append(next(rest, ""))
        elif word.startswith(f"--{name}="):
            values.append(word.partition("=")[2])
        elif letter and word.startswith(letter):
            values.append(word[2:])
        else:
            others.append(word)
    return values, others
