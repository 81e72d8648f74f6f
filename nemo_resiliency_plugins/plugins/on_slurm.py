"""What every plugin does on SlurmExecutor: one node launcher and one retry policy, whichever plugin asked for them."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import nemo_run as run
from nemo_run.core.execution.base import Executor

from nemo_resiliency_plugins.contract import ENV_ROUND, ENV_STRICT, Kind
from nemo_resiliency_plugins.errors import ConfigError, UnsupportedError
from nemo_resiliency_plugins.plugins import shipping, slurm_request
from nemo_resiliency_plugins.plugins.edits import AddSetupLines, Edit, Note, SetField, ToldOnce
from nemo_resiliency_plugins.plugins.launcher import named, refuse_nsys, take_over, without_meaning
from nemo_resiliency_plugins.plugins.launcher_edits import Claim, PassIntoContainer, RegisterTask, UseNodeLauncher
from nemo_resiliency_plugins.plugins.nested import nested_launchers
from nemo_resiliency_plugins.plugins.node_launcher import NRP, POLICY_FILE, RUN_DIR, NodeLauncher

SHARED_WITH_NEMO_RUN = ("max_restarts", "initial_rank_heartbeat_timeout", "rank_heartbeat_timeout")
"""Fields that a user may have set on NeMo-Run's own launcher."""
SETUP_LINES = """\
# nemo_resiliency_plugins: the retry policy decides in an EXIT trap what follows the step.
. {path} || exit 1"""


def plan(
    owner: str,
    task: run.Script | run.Partial,
    executor: run.SlurmExecutor,
    *,
    claims: Mapping[str, Any],
    trains: int,
    strict: bool,
    kind: Kind | None = None,
) -> Iterator[Edit]:
    """The edits that bring the node launcher and the policy, and set ``claims`` in the launcher.

    The executor's retries become those of the policy, unless the plugin claims that number itself.

    Args:
        kind: what starts the ranks; None keeps what the executor has.

    Raises:
        UnsupportedError, ConfigError, ConflictError: before anything is changed.
    """
    slurm_request.check(executor)
    refuse_what_cannot_work(owner, executor, trains)
    missing = list(shipping.check(owner, task, executor, strict))
    launcher = node_launcher(executor, kind, trains, claims)
    has_launcher = (kind or Kind(launcher.kind)) is not Kind.RANK
    slurm_request.refuse_contradictions(executor, trains, one_task=has_launcher)
    yield UseNodeLauncher(owner, launcher)
    yield from missing
    yield from (Note(owner, text, warn=True) for text in without_meaning(named(executor.launcher)))
    yield from log_is_kept(owner, executor)
    if kind is not None:
        yield Claim(owner, "kind", kind.value, takes_over=True)
    retries = {"policy.max_failures": executor.retries} if executor.retries else {}
    of_strict = {f"variables.{ENV_STRICT}": "true"} if strict else {}
    for name, value in {**retries, **claims, **of_strict, "trains": trains}.items():
        yield Claim(owner, name, value)
    if has_launcher:
        if place_in_group(task, executor) == trains:
            yield from nested_launchers(owner, task, launcher.ranks_per_node)
        yield from slurm_request.one_task_a_node(owner, executor)
    directory = Path(executor.tunnel.job_dir) / Path(executor.job_dir).name / launcher.room
    yield AddSetupLines(owner, SETUP_LINES.format(path=shlex.quote(str(directory / POLICY_FILE))))
    yield SetField(owner, "retries", 0)
    yield PassIntoContainer(owner, ENV_ROUND)
    if executor.run_as_group:
        yield RegisterTask(owner)


def refuse_what_cannot_work(owner: str, executor: run.SlurmExecutor, trains: int) -> None:
    """Raises UnsupportedError or ConfigError, before anything is changed."""
    if executor.heterogeneous:
        remedy = "Use one kind of nodes, heterogeneous=False."
        raise UnsupportedError("executor.heterogeneous", True, "heterogeneous jobs are not supported", remedy)
    if executor.container_image is None and RUN_DIR in executor.tunnel.job_dir:
        rule = f"NeMo-Run 0.11 replaces {RUN_DIR} wherever it stands in a batch script that uses no container"
        raise UnsupportedError("tunnel.job_dir", executor.tunnel.job_dir, rule, "Choose a directory without it.")
    if isinstance(executor.tunnel, run.SSHTunnel) and not re.fullmatch(r"/\S*", executor.tunnel.job_dir):
        rule = "NeMo-Run 0.11 and Slurm expand no ~ there and quote no spaces: the job would start nowhere"
        remedy = "Give an absolute path without spaces."
        raise UnsupportedError("tunnel.job_dir", executor.tunnel.job_dir, rule, remedy)
    tasks = len(executor.resource_group) or (trains + 1 if executor.run_as_group else 1)
    if trains >= tasks:
        rule = f"there is no such task among {tasks}"
        raise ConfigError(f"{owner}.trains", trains, rule, "Count the tasks of the group from 0.")


def is_training(task: run.Script | run.Partial, executor: Executor, trains: int) -> bool:
    """Whether this is the task that trains. NeMo-Run sets up the tasks of a group in their order."""
    if not (isinstance(executor, run.SlurmExecutor) and executor.run_as_group):
        return True
    known, key = list(getattr(executor.launcher, "tasks", {})), str(id(task))
    return (known.index(key) if key in known else len(known)) == trains


def node_launcher(
    executor: run.SlurmExecutor, kind: Kind | None, trains: int, claims: Mapping[str, Any]
) -> NodeLauncher:
    """The launcher that another plugin has brought, or a new one that takes over what the user has set."""
    present = named(executor.launcher)
    if isinstance(present, NodeLauncher):
        refuse_nsys(present)
        return present
    wanted = NodeLauncher(
        job_dir=executor.job_dir,
        room=room(executor),
        nodes=executor.nodes,
        ranks_per_node=slurm_request.ranks_per_node(executor, trains),
        **{name: value for name, value in claims.items() if name in SHARED_WITH_NEMO_RUN},
    )
    return dataclasses.replace(take_over(present, wanted), kind=(kind or kind_of(present)).value)


def place_in_group(task: run.Script | run.Partial, executor: run.SlurmExecutor) -> int:
    """The number of the task, from 0: NeMo-Run (0.11) hands those of a group to a plugin in their order."""
    known = list(getattr(executor.launcher, "tasks", {}))
    return known.index(str(id(task))) if str(id(task)) in known else len(known)


def room(executor: run.SlurmExecutor) -> str:
    """Where the task has its settings and counters, below the job directory.

    NeMo-Run (0.11) gives tasks of an experiment that have one name the same directory, and numbers their ids.
    """
    shared, own = Path(executor.job_dir).name, executor.job_name
    is_another = re.fullmatch(rf"{re.escape(shared)}_\d+", own)
    return f"{re.sub(r'[^A-Za-z0-9_.-]', '_', own)}/{NRP}" if is_another else NRP


def kind_of(launcher: Any) -> Kind:
    """What starts the ranks under one of NeMo-Run's launchers."""
    if isinstance(launcher, run.FaultTolerance):
        return Kind.FT
    return Kind.TORCHRUN if isinstance(launcher, run.Torchrun) else Kind.RANK


def log_is_kept(owner: str, executor: run.SlurmExecutor) -> Iterator[Note]:
    """A note, aloud, where Slurm empties the log at each requeue."""
    given = {key.replace("-", "_"): value for key, value in (executor.additional_parameters or {}).items()}
    mode = given.get("open_mode", executor.open_mode)
    if mode != "append":
        text = f"open_mode={mode} empties the log at each requeue: what ended an attempt is lost. Leave it at append"
        yield ToldOnce(owner, text, warn=True)
