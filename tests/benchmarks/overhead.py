"""What a step costs more with every feature on than without, beside the same features from stock parts.

Steps of 1 and 33 ms, a rank for each GPU under NCCL, or two with gloo where there is none; result validation has a
benchmark of its own. Writes ``build/bench.json`` (``overhead.*``; microseconds per step).
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
from pathlib import Path

import torch

from tests.benchmarks import report
from tests.benchmarks.faulted import STOCK_FLAGS
from tests.harness import LAUNCH, program, spawn

SCRIPT = Path(__file__).with_name("overheads.py")
PATHS = [str(SCRIPT.parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
HERE = {"GROUP_RANK": "0", "PYTHONPATH": os.pathsep.join(PATHS)}
RANKS = torch.cuda.device_count() or 2
STEPS = {33: 100, 1: 1000}
"""By the milliseconds of a step."""
TRACED = 100 if torch.cuda.is_available() else 0
VARIANTS = ("bare", "ours", "stock", *(["detector", "ours_host_side"] if TRACED else []))


@dataclasses.dataclass(frozen=True)
class Loop:
    """The mean step by its length, and how often in a step the host waited for the GPU, by call of the CUDA runtime.

    The waits are known of *bare* and *ours_host_side* alone: torch's profiler does not see them while NVRx's detector
    is on, and that is all that *ours_host_side* leaves out.
    """

    step_us: dict[int, float]
    waits: dict[str, float]


def loop(root: Path, variant: str) -> Loop:
    """The mean is of all steps but the slowest hundredth, in which the machine did something else."""
    launcher = [program("ft_launcher"), *STOCK_FLAGS, "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    numbers = ["--nnodes=1", f"--nproc-per-node={RANKS}", "--max-restarts=0"]
    script = [str(SCRIPT), "--root", str(root), "--loop", variant, "--steps", json.dumps(STEPS)]
    spawn(root, [*launcher, *numbers, *LAUNCH, *script, "--traced", str(TRACED)], HERE).succeed(180.0)
    found = json.loads((root / "found.json").read_text())
    waits = {name: count / TRACED for name, count in found["waits"].items()}
    return Loop({step_ms: mean_us(found["took"][str(step_ms)]) for step_ms in STEPS}, waits)


def mean_us(took: list[float]) -> float:
    return statistics.mean(sorted(took)[: len(took) * 99 // 100]) * 1e6


def main() -> None:
    options = report.arguments(__doc__, VARIANTS[1:])
    found: dict[str, list[float]] = {}
    waits: dict[str, dict[str, float]] = {}
    for variant in ("bare", *options.variants):
        loops = report.repeat(f"overhead.{variant}", options.repeats, lambda root, how=variant: loop(root, how))
        waits[f"overhead.{variant}"] = loops[0].waits
        for step_ms in STEPS:
            found[key_of(variant, step_ms)] = [each.step_us[step_ms] for each in loops]
        print(variant, [each.step_us for each in loops], loops[0].waits or "", flush=True)
    costs = {
        f"overhead.{variant}_us_per_step" + ("" if step_ms == 33 else f"_{step_ms}_ms"): round(
            statistics.median(found[key_of(variant, step_ms)]) - statistics.median(found[key_of("bare", step_ms)]), 1
        )
        for variant in options.variants
        for step_ms in STEPS
    }
    report.show(found, {}, costs)
    report.save(options.output, found, waits, costs)


def key_of(variant: str, step_ms: int) -> str:
    return f"overhead.{variant}_step_{step_ms}_ms_us"


if __name__ == "__main__":
    main()
