"""What straggler detection costs: a step on the host, and a report of several and of very many ranks.

Writes ``build/bench.json`` (``straggler.*``; microseconds per step, seconds per report).
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

from nemo_resiliency_plugins import runtime
from nemo_resiliency_plugins.runtime.stragglers.phases import PHASES
from nemo_resiliency_plugins.runtime.stragglers.scores import Report, Said
from nemo_resiliency_plugins.runtime.stragglers.telling import in_words
from tests.benchmarks import report
from tests.ranks import run
from tests.slowness import Options, train

STEPS = 20_000
RANKS = 8
SIMULATED = (1_000, 10_000)


def step_us(*, enabled: bool) -> list[float]:
    """The time between two steps of a loop with a model so small that the session and the hooks are what is left."""
    config = runtime.NVRxStragglerDetectionConfig(enabled=enabled, report_time_interval=1e6)
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.ones(1, 2)
    took = []
    with tempfile.TemporaryDirectory() as root, runtime.session(config) as session:
        session.attach({"model": model, "optimizer": optimizer}, root)
        last = time.perf_counter()
        for _ in session.steps(0, STEPS):
            model(batch).sum().backward()
            optimizer.step()
            now = time.perf_counter()
            took.append((now - last) * 1e6)
            last = now
    return took[STEPS // 10 :]


def reports_of_ranks() -> list[float]:
    """Seconds of each report of real ranks, the exchange between them included."""
    with tempfile.TemporaryDirectory() as root:
        group = run(Path(root), RANKS, train, Options(steps=60), deadline_s=120)
        return [event["seconds"] for event in group.events("straggler_report", rank=0)]


def simulated_report(ranks: int) -> list[float]:
    """Seconds to score and write down what so many ranks say."""
    text = json.dumps({"node": "node0001", "gpu": {"gpu_relative": 0.9, "gpu_individual": 0.9}, "no_gpu": ""})
    config = runtime.NVRxStragglerDetectionConfig()
    took = []
    for _ in range(5):
        began = time.perf_counter()
        host = {"total": 1.0, "best": 1.0, **dict.fromkeys(PHASES, 0.2)}
        said = [Said(**json.loads(text), host=host, no_host="") for _ in range(ranks)]
        made = Report(said, config)
        made.slow()
        in_words(made, config.num_gpu_perf_scores_to_print)
        took.append(time.perf_counter() - began)
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("build/bench.json"))
    output = parser.parse_args().output
    off, on = step_us(enabled=False), step_us(enabled=True)
    cost = statistics.median(on) - statistics.median(off)
    found = {
        "straggler.step_off_us": off,
        "straggler.step_on_us": on,
        f"straggler.report_{RANKS}_ranks_s": reports_of_ranks(),
        **{f"straggler.report_{ranks}_simulated_ranks_s": simulated_report(ranks) for ranks in SIMULATED},
    }
    report.show(found, {}, {"straggler.step_cost_us": cost})
    report.save(
        output, {key: values[:20] for key, values in found.items()}, {}, {"straggler.step_cost_us": round(cost, 2)}
    )


if __name__ == "__main__":
    main()
