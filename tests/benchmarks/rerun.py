"""What result validation costs a step when nothing is suspect: alone, and among ranks that wait for each other.

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
from torch.nn.parallel import DistributedDataParallel

from nemo_resiliency_plugins import runtime
from tests.benchmarks import report
from tests.ranks import run

STEPS = 2_000
RANKS = 2
STEP_US = 33_000.0
WIDTH, LAYERS = 256, 8


def measure(mode: str, output: Path | None = None) -> list[float]:
    """Microseconds of each step in :meth:`Session.checked`, without those in the function that it calls."""
    config = runtime.RerunStateMachineConfig(rerun_mode=mode, check_for_spiky_loss=True)
    layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)), nn.BatchNorm1d(WIDTH))
    model: nn.Module = layers if output is None else DistributedDataParallel(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    batch = torch.ones(4, WIDTH)
    inside: list[float] = []

    def forward_backward(inputs: torch.Tensor) -> torch.Tensor:
        began = time.perf_counter()
        loss: torch.Tensor = model(inputs).square().mean()
        loss.backward()
        inside.append(time.perf_counter() - began)
        return loss

    took = []
    with tempfile.TemporaryDirectory() as root, runtime.session(config) as session:
        session.attach({"model": model, "optimizer": optimizer}, root)
        for _ in session.steps(0, STEPS):
            optimizer.zero_grad()
            began = time.perf_counter()
            session.checked(forward_backward, batch)
            took.append((time.perf_counter() - began - inside[-1]) * 1e6)
            optimizer.step()
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
    found = {
        "rerun.checked_off_us": measure("disabled"),
        "rerun.checked_alone_us": measure("validate_results"),
        f"rerun.checked_{RANKS}_ranks_us": among_ranks("validate_results"),
    }
    costs = {
        f"rerun.cost_{RANKS}_ranks_us": statistics.median(found[f"rerun.checked_{RANKS}_ranks_us"]),
        f"rerun.share_of_33_ms_{RANKS}_ranks": statistics.median(found[f"rerun.checked_{RANKS}_ranks_us"]) / STEP_US,
    }
    report.show(found, {}, costs)
    rounded = {key: round(value, 5) for key, value in costs.items()}
    report.save(output, {key: values[:: STEPS // 20] for key, values in found.items()}, {}, rounded)


if __name__ == "__main__":
    main()
