"""What result validation costs a step on a GPU, and how long the card has nothing to do because of it.

Run on a machine with a GPU: ``python -m tests.device.rerun``, under torchrun for several; ``--device cpu`` shows only
that it runs. Prints a line of JSON for each mode: the median step, and from a profiler's trace the longest time in a
step between two kernels. The exit code is 1 where a step takes more than 1 % longer.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import statistics
import sys
import tempfile
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from nemo_resiliency_plugins import runtime

MODES: dict[str, dict[str, Any]] = {
    "off": {"rerun_mode": "disabled"},
    "loss": {"rerun_mode": "validate_results", "check_for_nan_in_gradients": False},
    "gradients": {"rerun_mode": "validate_results", "check_for_nan_in_gradients": True},
}
WARM, STEPS, TRACED = 20, 200, 10
MOST = 1.01


@dataclasses.dataclass(frozen=True)
class Size:
    """About 33 ms of a step on an H200; a tenth of a millisecond on a CPU."""

    width: int
    layers: int
    rows: int


SIZES = {"cuda": Size(width=8192, layers=8, rows=8192), "cpu": Size(width=64, layers=4, rows=8)}


def train(mode: str, device: torch.device) -> tuple[list[float], list[float]]:
    """Milliseconds of each step, and the longest gap between kernels in each of a few traced ones in microseconds."""
    size, kind = SIZES[device.type], torch.bfloat16 if device.type == "cuda" else torch.float32
    torch.manual_seed(1)
    layers = [nn.Linear(size.width, size.width, device=device, dtype=kind) for _ in range(size.layers)]
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    batch = torch.ones(size.rows, size.width, device=device, dtype=kind)

    def forward_backward(inputs: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(inputs).float().square().mean()
        loss.backward()
        return loss

    took: list[float] = []
    gaps: list[float] = []
    config = runtime.RerunStateMachineConfig(**MODES[mode])
    with tempfile.TemporaryDirectory() as root, runtime.session(config) as session:
        session.attach({"model": model, "optimizer": optimizer}, root)
        last = WARM + STEPS
        traced = range(last, last + (TRACED if device.type == "cuda" else 0))
        for step in session.steps(0, traced.stop):
            began = time.perf_counter()
            with profile(activities=[ProfilerActivity.CUDA]) if step in traced else contextlib.nullcontext() as trace:
                optimizer.zero_grad()
                session.checked(forward_backward, batch)
                optimizer.step()
                _wait_for(device)
            took.append((time.perf_counter() - began) * 1e3)
            if step in traced:
                gaps.append(longest_gap(trace))
    return took[WARM : WARM + STEPS], gaps


def longest_gap(trace: Any) -> float:
    """Microseconds."""
    busy = sorted((event.time_range.start, event.time_range.end) for event in trace.events() if event.device_index >= 0)
    end, longest = busy[0][1], 0.0
    for begin, until in busy:
        longest, end = max(longest, begin - end), max(end, until)
    return longest


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    kind = parser.parse_args().device
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("MASTER_PORT", "29555")
    device = torch.device(kind, int(os.environ["LOCAL_RANK"])) if kind == "cuda" else torch.device(kind)
    if kind == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo")
    medians: dict[str, float] = {}
    for mode in MODES:
        took, gaps = train(mode, device)
        medians[mode] = statistics.median(took)
        found = {"mode": mode, "step_ms": medians[mode], "times_off": medians[mode] / medians["off"]}
        if dist.get_rank() == 0:
            print(json.dumps({**found, "longest_gap_us": max(gaps, default=None)}), flush=True)
    dist.destroy_process_group()
    sys.exit(kind == "cuda" and max(medians.values()) > MOST * medians["off"])


if __name__ == "__main__":
    main()
