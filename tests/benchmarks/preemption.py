"""What taking notice of preemption costs in a step, beside a vote in every step, and how long it takes to leave.

A rank for each GPU with NCCL, or two with gloo where there is none. Adds to ``build/bench.json``.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from pathlib import Path

import torch

from tests.benchmarks.report import arguments, repeat, save, show
from tests.harness import LAUNCH, Job, spawn, torchrun

SCRIPT = str(Path(__file__).with_name("preempted.py"))
RANKS = torch.cuda.device_count() or 2
STEPS = 1500


@dataclasses.dataclass(frozen=True)
class Found:
    """Of all ranks: the seconds of every vote, the mean seconds of a step, and those from the signal to the end."""

    ticks: list[float]
    step_s: float
    to_exit_s: float


def measure(root: Path, vote: str) -> Found:
    """Those that listen leave because of a signal, the others by themselves."""
    script = [SCRIPT, "--root", str(root), "--vote", vote, "--steps", str(STEPS)]
    job = spawn(root, [*torchrun(RANKS, 0), *LAUNCH, *script], {}).succeed()
    found = [json.loads((root / f"figures-{rank}.json").read_text()) for rank in range(RANKS)]
    step_s = statistics.mean(rank["step_s"] for rank in found)
    to_exit_s = seconds_to_exit(job) if vote == "session" else 0.0
    return Found([each for rank in found for each in rank["ticks"]], step_s, to_exit_s)


def seconds_to_exit(job: Job) -> float:
    """From the signal on one rank to the end of the last one, the save left out."""
    signalled = float((job.root / "signalled").read_text())
    ended = max(event["time"] for event in job.events("rank_ended"))
    return ended - signalled - max(event["save_s"] for event in job.events("preempted"))


def main() -> None:
    options = arguments(__doc__)
    found: dict[str, list[float]] = {}
    steps: dict[str, float] = {}
    for vote, name in (("session", "vote"), ("stock", "stock_vote"), ("off", "off")):
        runs = repeat(name, options.repeats, lambda root, how=vote: measure(root, how))
        steps[vote] = statistics.median(run.step_s for run in runs)
        if vote != "off":
            found[f"preempt.{name}_us_per_step"] = [statistics.mean(run.ticks) * 1e6 for run in runs]
            found[f"preempt.{name}_p999_us"] = [statistics.quantiles(run.ticks, n=1000)[-1] * 1e6 for run in runs]
        if vote == "session":
            found["preempt.signal_to_exit_s"] = [run.to_exit_s for run in runs]
    ratios = {
        "preempt.step_minus_off_us": (steps["session"] - steps["off"]) * 1e6,
        "preempt.stock_step_minus_off_us": (steps["stock"] - steps["off"]) * 1e6,
    }
    show(found, {}, ratios)
    save(options.output, found, {}, ratios)


if __name__ == "__main__":
    main()
