"""How long after a fault the training runs again: ours, the stock flags, torchrun, and the floor of a cold start.

All variants run the same script on this machine in the same run. Writes ``build/bench.json``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.benchmarks.faulted import FAULTS, cold_start, measure, ours, stock, torchrun
from tests.benchmarks.measured import Recoveries
from tests.benchmarks.report import arguments, medians, repeat, save, show
from tests.harness import Job

Variant = Callable[[Path], Job]
VARIANTS: dict[str, tuple[Variant, tuple[str, ...]]] = {
    "ours": (ours, FAULTS),
    "stock": (stock, FAULTS),
    "torchrun": (torchrun, FAULTS[:2]),
}


def main() -> None:
    options = arguments(__doc__)
    recoveries = Recoveries()
    for name, (variant, kinds) in VARIANTS.items():
        runs = repeat(name, options.repeats, lambda root, start=variant, faults=kinds: measure(start(root), faults))
        for kind in kinds:
            recoveries.add(f"{kind}.{name}_s", [run[kind] for run in runs])
    recoveries.found["kill.cold_start_s"] = repeat("kill.cold_start_s", options.repeats, cold_start)
    typical = medians(recoveries.found)
    ratios = {
        "hang.stock_over_ours": typical["hang.stock_s"] / typical["hang.ours_s"],
        "kill.ours_over_cold_start": typical["kill.ours_s"] / typical["kill.cold_start_s"],
    }
    show(recoveries.found, recoveries.parts, ratios)
    save(options.output, recoveries.found, recoveries.parts, ratios)


if __name__ == "__main__":
    main()
