"""Slurm without NeMo-Run: the same plugins, for a script that ``sbatch`` takes, or for submitit."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import nemo_run as run
import yaml

from nemo_resiliency_plugins.contract import Kind
from nemo_resiliency_plugins.errors import ConfigError, ConflictError
from nemo_resiliency_plugins.plugins.base import ResiliencyPlugin
from nemo_resiliency_plugins.plugins.node_launcher import NodeLauncher
from nemo_resiliency_plugins.slurm.batch import BatchJob

UNHEARD = "CONT@1"
"""submitit always asks Slurm for a signal, USR2 unless told otherwise, of which ranks die; this one hurts nobody."""

PARAMETERS = {
    "task": "command",
    "executor.launcher": "launcher",
    "executor.srun_args": "srun_options",
    "env_vars": "variables",
    "tunnel.job_dir": "directory",
}
"""What the fields of the executor are here, which the plugins name in their errors."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """What runs where, as :func:`sbatch_script` and :func:`submitit_parameters` have it.

    Attributes:
        directory: on a file system that all nodes share; each job gets a directory below for its settings, events,
            verdict and the policy's counters.
        nodes: how many.
        ranks_per_node: processes of the training on each.
        launcher: ``"torchrun"``, or None: ``srun`` starts the ranks. FaultTolerancePlugin brings its own.
        retries: further attempts after failures in a row, where no plugin says how many.
        variables: exported for the training.
    """

    directory: str
    nodes: int = 1
    ranks_per_node: int = 1
    launcher: str | None = None
    retries: int = 0
    variables: Mapping[str, str] | None = None

    def executor(self, time: str, srun_options: Sequence[str]) -> run.SlurmExecutor:
        """What the plugins change in the place of a user's executor."""
        return run.SlurmExecutor(
            account="",
            nodes=self.nodes,
            ntasks_per_node=self.ranks_per_node,
            time=time,
            launcher=self.launcher,
            retries=self.retries,
            env_vars=dict(self.variables or {}),
            srun_args=list(srun_options),
            tunnel=run.LocalTunnel(job_dir=self.directory),
            packager=run.Packager(),
        )


def sbatch_script(
    plugins: Sequence[ResiliencyPlugin],
    command: Sequence[str],
    *,
    options: Sequence[str] = (),
    srun_options: Sequence[str] = (),
    setup: Sequence[str] = (),
    python: str = "python",
    **training: Any,
) -> str:
    """A batch script that trains under ``plugins``, without NeMo-Run.

    Args:
        plugins: as for ``run.run``; ``script_args_converter_fn`` and ``overrides`` are refused, since the command is
            given here as it is to be.
        command: what each rank, or its launcher, runs, such as ``["python", "train.py"]``.
        options: further ones of sbatch, such as ``--time=24:00:00``.
        srun_options: further ones of the step, such as ``--container-image=IMAGE``.
        setup: lines of bash that come before everything, such as ``module load cuda``.
        python: the interpreter on the nodes, which has this package.
        training: the fields of :class:`Training`; ``directory`` must be there.

    Raises:
        ConfigError: the plugins cannot work with that, or an option is refused; the message names the remedy.
    """
    time = _time_limit(options)
    job = batch_job(plugins, Training(**training), command=command, time=time, srun_options=srun_options)
    version = importlib.metadata.version("nemo-resiliency-plugins")
    return job.script(command, version=version, options=options, setup=setup, python=python)


def submitit_parameters(plugins: Sequence[ResiliencyPlugin], **training: Any) -> dict[str, Any]:
    """For ``update_parameters`` of submitit's ``AutoExecutor``, which then submits a ``runtime.NodeTask(command)``.

    The job brings itself back by the retry policy; submitit's own requeue is not used.

    Args:
        plugins: as for :func:`sbatch_script`.
        training: the fields of :class:`Training`; ``directory`` must be there.

    Raises:
        ConfigError: the plugins cannot work with that; the message names the remedy.
    """
    job = batch_job(plugins, Training(**training))
    return {
        "nodes": job.nodes,
        "tasks_per_node": job.tasks_per_node,
        "slurm_setup": job.prelude().splitlines(),
        "slurm_srun_args": job.step_arguments(),
        "slurm_additional_parameters": {
            "signal": job.signal or UNHEARD,
            **({"no_kill": True} if job.keeps_allocation else {}),
            **({"requeue": True} if job.policy["requeue"] else {}),
        },
    }


def batch_job(
    plugins: Sequence[ResiliencyPlugin],
    training: Training,
    *,
    command: Sequence[str] = (),
    time: str = "UNLIMITED",
    srun_options: Sequence[str] = (),
) -> BatchJob:
    """What the plugins make of an executor of NeMo-Run, as plain data; ``command``: as far as it is known here.

    Raises:
        ConfigError: the plugins cannot work with that, or there are none.
    """
    if not plugins:
        raise ConfigError("plugins", [], "is empty", "Give at least one, such as FaultTolerancePlugin().")
    _refuse_two_numbers(plugins, training.retries)
    executor = training.executor(time, srun_options)
    task = run.Script(inline=shlex.join(command) or "true")
    with in_words_of(PARAMETERS):
        for plugin in plugins:
            plugin.setup(task, executor)
    made: NodeLauncher = executor.launcher
    return BatchJob(
        directory=training.directory,
        node=made.node_settings(),
        settings=made.config,
        monitor=yaml.safe_dump(made.monitor_settings(), sort_keys=False),
        policy=made.policy_values(),
        nodes=training.nodes,
        tasks_per_node=training.ranks_per_node if made.kind == Kind.RANK.value else 1,
        signal=executor.signal or "",
        keeps_allocation=bool((executor.additional_parameters or {}).get("no_kill")),
        srun_arguments=executor.srun_args,
        variables={**made.variables, **executor.env_vars},
    )


@contextlib.contextmanager
def in_words_of(names: Mapping[str, str]) -> Iterator[None]:
    """Errors inside name fields as the caller's user knows them.

    Args:
        names: by field what it is called; entries, such as ``env_vars['A']``, are those of the field.
    """
    try:
        yield
    except ConfigError as error:
        field, bracket, entry = error.field.partition("[")
        if field not in names:
            raise
        raise type(error)(f"{names[field]}{bracket}{entry}", error.value, error.rule, error.remedy) from None


def _refuse_two_numbers(plugins: Sequence[ResiliencyPlugin], retries: int) -> None:
    """Raises ConflictError where a plugin has a number of its own, whichever plugin comes first."""
    for plugin in plugins:
        own = getattr(plugin, "num_job_retries_on_failure", retries)
        if retries not in (0, own):
            rule = f"num_job_retries_on_failure={own} of {type(plugin).__name__} says something else"
            raise ConflictError("retries", retries, rule, "Leave it out, and set that field")


def _time_limit(options: Sequence[str]) -> str:
    """What the options say, for plugins that compare with it."""
    given = [option.partition("=")[2] for option in options if option.startswith("--time=")]
    return given[-1] if given else "UNLIMITED"
