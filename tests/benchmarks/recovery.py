"""How long after a fault the training runs again: ours, the stock flags, torchrun, and the floor of a cold start.

All variants run the same script on this machine in the same run. Writes ``build/bench.json``.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable
from pathlib import Path

import nemo_run as run

from nemo_resiliency_plugins import FaultTolerancePlugin
from tests.benchmarks.faulted import FAULT, RANKS, SCRIPT, STEP_TIMEOUT_S, STEPS, cold_start, measure, stock, torchrun
from tests.benchmarks.report import medians, repeat, save, show
from tests.harness import Job, clean_env, program, spawn
from tests.submission import submission


def ours(root: Path, fault: str) -> Job:
    plugin = FaultTolerancePlugin(rank_heartbeat_timeout=STEP_TIMEOUT_S, fault_script=FAULT[fault])
    task = run.Script(SCRIPT, entrypoint="python", args=["--root", str(root), "--steps", str(STEPS)])
    executor = run.LocalExecutor(ntasks_per_node=RANKS, env_vars={"NRP_DIR": str(root / "nrp")})
    started = submission(task, executor, [plugin], root)
    return spawn(root, [program(started.command[0]), *started.command[1:]], started.env)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path("build/bench.json"))
    options = parser.parse_args()
    os.environ.update(clean_env({}))
    plan: dict[str, tuple[Callable[[Path, str], Job], str]] = {
        "hang.ours_s": (ours, "hang"),
        "hang.stock_s": (stock, "hang"),
        "kill.ours_s": (ours, "kill"),
        "kill.stock_s": (stock, "kill"),
        "kill.torchrun_s": (torchrun, "kill"),
        "exception.ours_s": (ours, "exception"),
        "exception.stock_s": (stock, "exception"),
        "exception.torchrun_s": (torchrun, "exception"),
    }
    found: dict[str, list[float]] = {}
    parts: dict[str, dict[str, float]] = {}
    for key, (variant, fault) in plan.items():
        # A stock hang takes over 40 s: three of them are enough.
        times = min(3, options.repeats) if key == "hang.stock_s" else options.repeats
        runs = repeat(key, times, lambda root, start=variant, kind=fault: measure(start(root, kind)))
        found[key] = [each.total_s for each in runs]
        if variant is ours:
            parts[key] = {name: statistics.median(each.parts[name] for each in runs) for name in runs[0].parts}
    found["kill.cold_start_s"] = repeat("kill.cold_start_s", options.repeats, cold_start)
    typical = medians(found)
    ratios = {
        "hang.stock_over_ours": typical["hang.stock_s"] / typical["hang.ours_s"],
        "kill.ours_over_cold_start": typical["kill.ours_s"] / typical["kill.cold_start_s"],
    }
    show(found, parts, ratios)
    save(options.output, found, parts, ratios)


if __name__ == "__main__":
    main()
