"""What taking notice of preemption costs in a step, beside a vote in every step, and how long it takes to leave.

A rank for each GPU with NCCL, or four with gloo where there is none. Adds to ``build/bench.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from pathlib import Path

import torch

from tests.benchmarks.report import repeat, save, show
from tests.harness import LAUNCH, Job, clean_env, spawn, torchrun

SCRIPT = str(Path(__file__).with_name("preempted.py"))
RANKS = torch.cuda.device_count() or 4
STEPS = 5000
SIGNAL_AT = 500


def run(root: Path, vote: str, signal_at: int = -1) -> Job:
    script = [SCRIPT, "--root", str(root), "--vote", vote, "--steps", str(STEPS), "--signal-at", str(signal_at)]
    return spawn(root, [*torchrun(RANKS, 0), *LAUNCH, *script], {}).succeed()


def figures(root: Path, vote: str) -> tuple[list[float], float]:
    """Of all ranks: the seconds of every vote in a step, and the mean seconds of a step."""
    run(root, vote)
    found = [json.loads((root / f"figures-{rank}.json").read_text()) for rank in range(RANKS)]
    return [each for rank in found for each in rank["ticks"]], statistics.mean(rank["step_s"] for rank in found)


def to_exit_s(root: Path) -> float:
    """Seconds from the signal on one rank to the end of the last one, the save left out."""
    job = run(root, "session", SIGNAL_AT)
    signalled = float((root / "signalled").read_text())
    ended = max(event["time"] for event in job.events("rank_ended"))
    return ended - signalled - max(event["save_s"] for event in job.events("preempted"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path("build/bench.json"))
    options = parser.parse_args()
    os.environ.update(clean_env({}))
    found: dict[str, list[float]] = {}
    steps: dict[str, float] = {}
    for vote, name in (("session", "vote"), ("stock", "stock_vote"), ("off", "off")):
        runs = repeat(name, options.repeats, lambda root, how=vote: figures(root, how))
        steps[vote] = statistics.median(step_s for _, step_s in runs)
        if vote != "off":
            found[f"preempt.{name}_us_per_step"] = [statistics.mean(ticks) * 1e6 for ticks, _ in runs]
            found[f"preempt.{name}_p999_us"] = [statistics.quantiles(ticks, n=1000)[-1] * 1e6 for ticks, _ in runs]
    found["preempt.signal_to_exit_s"] = repeat("preempt.signal_to_exit_s", options.repeats, to_exit_s)
    ratios = {
        "preempt.step_minus_off_us": (steps["session"] - steps["off"]) * 1e6,
        "preempt.stock_step_minus_off_us": (steps["stock"] - steps["off"]) * 1e6,
    }
    show(found, {}, ratios)
    save(options.output, found, {}, ratios)


if __name__ == "__main__":
    main()
