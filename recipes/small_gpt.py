"""The small GPT, on this machine or on a cluster.

``python -m nemo_resiliency_plugins.recipes.small_gpt --help`` submits it to this machine.
"""

from __future__ import annotations

from pathlib import Path, PurePath, PurePosixPath
from typing import Annotated

import nemo_run as run
import typer

from nemo_resiliency_plugins import ConfigError, FaultTolerancePlugin
from nemo_resiliency_plugins.recipes import plugin_sets
from nemo_resiliency_plugins.recipes.own_script import Recipe, local, script
from nemo_resiliency_plugins.recipes.plugin_sets import Plugins

__all__ = ["small_gpt", "small_gpt_on_slurm"]

MODULE = "nemo_resiliency_plugins.recipes.scripts.small_gpt"
SCRIPT = Path(__file__).parent / "scripts" / "small_gpt.py"


def small_gpt(
    directory: str,
    *,
    ranks: int = 2,
    steps: int = 60,
    step_timeout: float = 300,
    faults: str = "",
    plugins: Plugins | None = None,
) -> Recipe:
    """Train the small GPT on ``ranks`` CPU or GPU ranks of this machine.

    Args:
        directory: for the checkpoints and the hash of the final weights; a second run resumes from it.
        ranks: processes to start.
        steps: optimizer steps to do in all.
        step_timeout: seconds that a step may take before its rank counts as hung.
        faults: faults to inject, such as ``kill@1:23,hang@0:42``.
        plugins: None is FaultTolerancePlugin alone; ``step_timeout`` and ``faults`` are for that one.
    """
    default = FaultTolerancePlugin(rank_heartbeat_timeout=step_timeout, fault_script=faults)
    arguments = _arguments(Path(directory).absolute(), steps)
    chosen = [default] if plugins is None else plugins
    return script(MODULE, arguments, executor=local(ranks), plugins=chosen, module=True)


def small_gpt_on_slurm(
    directory: str, executor: run.SlurmExecutor, *, steps: int = 60, plugins: Plugins | None = None
) -> Recipe:
    """Train the small GPT on a cluster, which needs torch and NVRx: the script is shipped.

    Args:
        directory: of the cluster, absolute and shared; for the checkpoints and the hash of the final weights.
        executor: its packager is replaced by one that ships the script.
        steps: optimizer steps to do in all.
        plugins: None is ``production()``.

    Raises:
        ConfigError: ``directory`` is not absolute.
    """
    root = PurePosixPath(directory)
    if not root.is_absolute():
        rule = "must be absolute: it is a directory of the cluster, whatever the directory here"
        raise ConfigError("directory", directory, rule, "Give a path that all nodes share.")
    shipping = executor.clone()
    shipping.packager = run.PatternPackager(include_pattern=str(SCRIPT), relative_path=str(SCRIPT.parent))
    chosen = plugin_sets.production() if plugins is None else plugins
    return script(SCRIPT.name, _arguments(root, steps), executor=shipping, plugins=chosen)


def _arguments(root: PurePath, steps: int) -> list[str]:
    return ["--checkpoints", str(root / "checkpoints"), "--result", str(root / "weights.sha256"), "--steps", str(steps)]


def main(
    directory: Annotated[Path, typer.Argument(help="where checkpoints and the result go")],
    ranks: int = 2,
    steps: int = 60,
    step_timeout: float = 300,
    faults: Annotated[str, typer.Option(help="such as kill@1:23,hang@0:42")] = "",
) -> None:
    """Submit the small GPT to this machine and wait for it."""
    directory.mkdir(parents=True, exist_ok=True)
    task, executor, plugins = small_gpt(
        str(directory), ranks=ranks, steps=steps, step_timeout=step_timeout, faults=faults
    )
    run.run(task, executor=executor, plugins=plugins, name="small_gpt")


if __name__ == "__main__":
    typer.run(main)
