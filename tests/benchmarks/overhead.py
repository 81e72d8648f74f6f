"""What a step costs more with every feature on than without, beside the same features from stock parts.

Steps of 1 and 33 ms, a rank for each GPU under NCCL, or two with gloo where there is none; result validation has a
benchmark of its own. Writes ``build/bench.json`` (``overhead.*``; microseconds per step).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from pathlib import Path

import torch

from tests.benchmarks import report
from tests.benchmarks.recovery import STOCK_FLAGS
from tests.harness import BIN, LAUNCH, clean_env, spawn

SCRIPT = Path(__file__).with_name("overheads.py")
HERE = {"GROUP_RANK": "0", "PYTHONPATH": str(SCRIPT.parents[2])}
RANKS = torch.cuda.device_count() or 2
STEPS = {1: 3000, 33: 300}
"""By the milliseconds of a step."""
VARIANTS = ("bare", "ours", "stock")


def step_us(root: Path, variant: str, step_ms: int) -> float:
    """The mean of all steps but the slowest hundredth, in which the machine did something else."""
    launcher = [str(BIN / "ft_launcher"), *STOCK_FLAGS, "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    numbers = ["--nnodes=1", f"--nproc-per-node={RANKS}", "--max-restarts=0"]
    script = [
        str(SCRIPT),
        "--root",
        str(root),
        "--loop",
        variant,
        "--step-ms",
        str(step_ms),
        "--steps",
        str(STEPS[step_ms]),
    ]
    spawn(root, [*launcher, *numbers, *LAUNCH, *script], HERE).succeed(180.0)
    took = sorted(json.loads((root / "took.json").read_text()))
    return statistics.mean(took[: len(took) * 99 // 100]) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path("build/bench.json"))
    options = parser.parse_args()
    os.environ.update(clean_env({}))
    found: dict[str, list[float]] = {}
    costs: dict[str, float] = {}
    for step_ms in STEPS:
        for variant in VARIANTS:
            key = f"overhead.{variant}_step_{step_ms}_ms_us"
            found[key] = report.repeat(
                key, options.repeats, lambda root, how=variant, ms=step_ms: step_us(root, how, ms)
            )
        typical = {
            variant: statistics.median(found[f"overhead.{variant}_step_{step_ms}_ms_us"]) for variant in VARIANTS
        }
        for variant in VARIANTS[1:]:
            key = f"overhead.{variant}_us_per_step" + ("" if step_ms == 33 else f"_{step_ms}_ms")
            costs[key] = round(typical[variant] - typical["bare"], 1)
    report.show(found, {}, costs)
    report.save(options.output, found, {}, costs)


if __name__ == "__main__":
    main()
