"""What result validation costs: a step on the host, alone and among ranks, when nothing is suspect.

Writes ``build/bench.json`` (``rerun.*``; microseconds per step).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from nemo_resiliency_plugins import runtime
from tests.benchmarks import report
from tests.ranks import run

STEPS = 4_000
RANKS = 2
STEP_US = 33_000.0
WIDTH, LAYERS = 256, 8


def measure(mode: str, output: Path | None = None) -> list[float]:
    """Microseconds from step to step, of a model so small that the session is much of what is left."""
    config = runtime.RerunStateMachineConfig(rerun_mode=mode, check_for_spiky_loss=True)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)), nn.BatchNorm1d(WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    batch = torch.ones(4, WIDTH)

    def forward_backward(inputs: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(inputs).square().mean()
        loss.backward()
        return loss

    took = []
    with tempfile.TemporaryDirectory() as root, runtime.session(config) as session:
        session.attach({"model": model, "optimizer": optimizer}, root)
        last = time.perf_counter()
        for _ in session.steps(0, STEPS):
            optimizer.zero_grad()
            session.checked(forward_backward, batch)
            optimizer.step()
            now = time.perf_counter()
            took.append((now - last) * 1e6)
            last = now
    if output is not None and dist.get_rank() == 0:
        output.write_text("\n".join(map(str, took)))
    return took[STEPS // 10 :]


def among_ranks(mode: str) -> list[float]:
    with tempfile.TemporaryDirectory() as root:
        output = Path(root) / "took.txt"
        run(Path(root), RANKS, measure, mode, output, deadline_s=300)
        return [float(text) for text in output.read_text().splitlines()][STEPS // 10 :]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("build/bench.json"))
    output = parser.parse_args().output
    torch.set_num_threads(1)
    found = {}
    costs = {}
    for name, times in (("alone", measure), (f"{RANKS}_ranks", among_ranks)):
        off, on = times("disabled"), times("validate_results")
        found |= {f"rerun.step_off_{name}_us": off, f"rerun.step_on_{name}_us": on}
        cost = statistics.median(on) - statistics.median(off)
        costs |= {f"rerun.cost_{name}_us": round(cost, 1), f"rerun.share_of_33_ms_{name}": round(cost / STEP_US, 5)}
    report.show(found, {}, costs)
    report.save(output, {key: values[:20] for key, values in found.items()}, {}, costs)


if __name__ == "__main__":
    main()
