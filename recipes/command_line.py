"""The recipes as commands, ``nemorun resiliency ...``: what the entry point ``nemo_run.cli`` loads."""

# Without "from __future__ import annotations": NeMo-Run 0.11 needs the types themselves.

import re
import shlex
from typing import Any

import nemo_run as run
from nemo_run.cli.api import InvalidOptionError, MissingRequiredOptionError

from nemo_resiliency_plugins.recipes import factories, own_script
from nemo_resiliency_plugins.recipes import small_gpt as gpt
from nemo_resiliency_plugins.recipes.own_script import Recipe

__all__ = ["COMMANDS", "in_process_restart", "megatron_bridge", "script", "small_gpt"]

NAMESPACE = "resiliency"
RUN = "run."
STEPS = 60


class Context(run.cli.RunContext):
    """Refuses what NeMo-Run 0.11 would lose on the way."""

    def cli_execute(self, fn: Any, args: list[str], entrypoint_type: Any = "task") -> None:
        """Called by NeMo-Run with all arguments of a command."""
        refuse_what_would_be_lost([arg.removeprefix(RUN) for arg in args if arg.startswith(RUN)])
        super().cli_execute(fn, args, entrypoint_type)


def refuse_what_would_be_lost(args: list[str]) -> None:
    """Look at the arguments that begin with ``run.``, without it.

    Raises:
        InvalidOptionError: a field of an executor or of plugins that no argument chooses, which NeMo-Run 0.11 would
            ignore, or a value of which it would remove a part.
    """
    for arg in args:
        key, _, value = arg.partition("=")
        chooser = re.split(r"[.\[]", key)[0]
        if key != chooser and not any(other.startswith(f"{chooser}=") for other in args):
            raise InvalidOptionError(f"run.{arg} has no effect without run.{chooser}=NAME")
        if key == chooser and "=" in value:
            raise InvalidOptionError(f"run.{arg}: NeMo-Run cuts it at the second '='. Give values by position")
        for part in (RUN, f"{chooser}."):
            if part in value:
                reason = f"NeMo-Run removes {part!r} from values on the command line"
                raise InvalidOptionError(f"run.{arg}: {reason}. Set the field in a factory of your own")


def script(ctx: Context, path: str, args: str = "") -> None:
    """Submit a training script of your own.

    Args:
        path: as the job will see it.
        args: of the script, in one word, quoted as for a shell.
    """
    launch(ctx, own_script.script(path, shlex.split(args), **chosen(ctx)))


def megatron_bridge(ctx: Context, path: str, args: str = "") -> None:
    """Submit a pretraining script of Megatron-Bridge; the plugins add overrides to its arguments."""
    launch(ctx, own_script.megatron_bridge(path, shlex.split(args), **chosen(ctx)))


def in_process_restart(ctx: Context, path: str, args: str = "") -> None:
    """Submit a script that hands its train function to runtime.inprocess."""
    if ctx.executor is None:
        raise MissingRequiredOptionError("in-process restart needs Slurm: give run.executor=slurm or your own")
    launch(ctx, own_script.in_process_restart(path, shlex.split(args), **chosen(ctx)))


def small_gpt(ctx: Context, directory: str, steps: int = STEPS) -> None:
    """Train the small GPT, on this machine or on a cluster.

    Args:
        directory: for the checkpoints and the hash of the final weights; on a cluster absolute and shared.
        steps: optimizer steps to do in all.
    """
    plugins = ctx.plugins or None
    if isinstance(ctx.executor, run.SlurmExecutor):
        launch(ctx, gpt.small_gpt_on_slurm(directory, ctx.executor, steps=steps, plugins=plugins))
    else:
        task, executor, used = gpt.small_gpt(directory, steps=steps, plugins=plugins)
        launch(ctx, (task, ctx.executor or executor, used))


COMMANDS = (script, megatron_bridge, in_process_restart, small_gpt)


def chosen(ctx: Context) -> dict[str, Any]:
    """Executor and plugins of the command line; None where none were chosen."""
    return {"executor": ctx.executor, "plugins": ctx.plugins or None}


def launch(ctx: Context, recipe: Recipe) -> None:
    """Submit the recipe as the options say, ``--dryrun``, ``--detach`` and so on."""
    task, ctx.executor, plugins = recipe
    with run.Experiment(ctx.name, executor=ctx.executor) as experiment:
        experiment.add(task, executor=ctx.executor, plugins=plugins, name=ctx.name)
        ctx.launch(experiment)


factories.register()
for command in COMMANDS:
    run.cli.entrypoint(command, namespace=NAMESPACE, type="experiment", run_ctx_cls=Context)
