"""How long after a fault the training runs again: ours, the stock flags, torchrun, and the floor of a cold start.

All variants run the same script on this machine in the same run. Writes ``build/bench.json``.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable
from pathlib import Path

from tests.benchmarks.faulted import FAULTS, cold_start, measure, ours, stock, torchrun
from tests.benchmarks.report import medians, repeat, save, show
from tests.harness import Job, clean_env

Variant = Callable[[Path], Job]
VARIANTS: dict[str, tuple[Variant, tuple[str, ...]]] = {
    "ours": (ours, FAULTS),
    "stock": (stock, FAULTS),
    "torchrun": (torchrun, FAULTS[:2]),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path("build/bench.json"))
    options = parser.parse_args()
    os.environ.update(clean_env({}))
    found: dict[str, list[float]] = {}
    parts: dict[str, dict[str, float]] = {}
    for name, (variant, kinds) in VARIANTS.items():
        runs = repeat(name, options.repeats, lambda root, start=variant, faults=kinds: measure(start(root), faults))
        for kind in kinds:
            key = f"{kind}.{name}_s"
            found[key] = [run[kind].total_s for run in runs]
            if variant is ours:
                times = [run[kind].parts for run in runs]
                parts[key] = {part: statistics.median(each[part] for each in times) for part in times[0]}
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
