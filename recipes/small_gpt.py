"""The small GPT on this machine, under FaultTolerancePlugin.

``python -m nemo_resiliency_plugins.recipes.small_gpt --help`` submits it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import nemo_run as run
import typer

from nemo_resiliency_plugins import FaultTolerancePlugin

Recipe = tuple[run.Script, run.LocalExecutor, list[FaultTolerancePlugin]]


def small_gpt(
    directory: str, *, ranks: int = 2, steps: int = 60, step_timeout: float = 300, faults: str = ""
) -> Recipe:
    """Train the small GPT on ``ranks`` CPU or GPU ranks of this machine.

    Args:
        directory: for the checkpoints and the hash of the final weights; a second run resumes from it.
        ranks: processes to start.
        steps: optimizer steps to do in all.
        step_timeout: seconds that a step may take before its rank counts as hung.
        faults: faults to inject, such as ``kill@1:23,hang@0:42``.
    """
    root = Path(directory).absolute()
    task = run.Script(
        path="nemo_resiliency_plugins.recipes.scripts.small_gpt",
        m=True,
        entrypoint="python",
        args=[
            "--checkpoints",
            str(root / "checkpoints"),
            "--result",
            str(root / "weights.sha256"),
            "--steps",
            str(steps),
        ],
    )
    executor = run.LocalExecutor(ntasks_per_node=ranks)
    plugin = FaultTolerancePlugin(rank_heartbeat_timeout=step_timeout, fault_script=faults)
    return task, executor, [plugin]


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
