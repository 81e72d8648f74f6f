"""Scores of GPUs from their kernels: a real report, a real slow-down, and what profiling costs a step.

Run on a machine with GPUs, under torchrun for several: ``python -m tests.device.straggler``. The last rank's card is
hogged by a second process for some of the reports. Prints lines of JSON; an exit code other than 0 means that the
hogged card was not seen.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from nemo_resiliency_plugins import runtime
from nemo_resiliency_plugins.compat.nvrx import installed_version
from nemo_resiliency_plugins.contract import read_events

WIDTH = 16384
"""Kernels of 11 ms: two processes share a card in turns of some milliseconds, which shorter kernels fit in unharmed."""
HOG = """
import torch
a = torch.randn(8192, 8192, device="cuda:{device}", dtype=torch.bfloat16)
print("hogging", flush=True)
while True:
    for _ in range(50):
        a = (a @ a).clamp(-1, 1)
    torch.cuda.synchronize()
"""


class Training:
    def __init__(self) -> None:
        torch.manual_seed(1)
        layers = [layer for _ in range(2) for layer in (nn.Linear(WIDTH, WIDTH, device="cuda"), nn.ReLU())]
        model: nn.Module = nn.Sequential(*layers).bfloat16()
        self.model = DistributedDataParallel(model) if dist.get_world_size() > 1 else model
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.batch = torch.ones(WIDTH, WIDTH, device="cuda", dtype=torch.bfloat16)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(self.batch).square().mean().backward()
        self.optimizer.step()


def hog(device: int) -> subprocess.Popen[bytes]:
    """A process that keeps the card busy; returns when it does."""
    process = subprocess.Popen([sys.executable, "-c", HOG.format(device=device)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def train(training: Training, root: Path, steps: int, *, hogged_from: int | None = None, **detection: Any) -> float:
    """The median of a step's seconds, the GPU's work included. ``hogged_from``: a step of the last rank."""
    took = []
    processes = []
    config = runtime.NVRxStragglerDetectionConfig(report_time_interval=2.0, **detection)
    with runtime.session(config) as session:
        start = session.attach({"model": training.model}, root / "checkpoints", every=0)
        for step in session.steps(start, start + steps):
            if step - start == hogged_from and dist.get_rank() == dist.get_world_size() - 1:
                processes.append(hog(torch.cuda.current_device()))
            began = time.perf_counter()
            training.step()
            torch.cuda.synchronize()
            took.append(time.perf_counter() - began)
    for process in processes:
        process.kill()
    return statistics.median(took)


def host_cost(root: Path, **detection: Any) -> float:
    """Microseconds per step of a session around steps that do almost nothing, without and with detection."""
    small = nn.Linear(8, 8, device="cuda")
    config = runtime.NVRxStragglerDetectionConfig(report_time_interval=1000.0, **detection)
    value = torch.ones(8, 8, device="cuda")
    took = []
    with runtime.session(config) as session:
        start = session.attach({"small": small}, root / "small", every=0)
        last = time.perf_counter()
        for _ in session.steps(start, start + 4000):
            small(value)
            now = time.perf_counter()
            took.append(now - last)
            last = now
    return statistics.median(took[500:]) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="an empty directory that all ranks share")
    options = parser.parse_args()
    rank, device = int(os.environ.get("RANK", "0")), int(os.environ.get("LOCAL_RANK", "0"))
    torch.cuda.set_device(device)
    nrp = options.root / "nrp"
    os.environ["NRP_DIR"] = str(nrp)
    store = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group("cpu:gloo,cuda:nccl", **store)
    ranks = dist.get_world_size()
    training = Training()
    for _ in range(20):
        training.step()
    plain = train(training, options.root, 100)
    watched = train(training, options.root, 100, enabled=True)
    costs = [host_cost(options.root / name, enabled=on) for name, on in (("off", False), ("on", True))]
    train(training, options.root, 250, hogged_from=100, enabled=True)
    last = ranks - 1
    reports = [event for event in read_events(nrp) if event["event"] == "straggler_report"]
    if rank == 0:
        for report in reports:
            print(json.dumps({key: report[key] for key in ("scores", "absent", "stragglers", "seconds")}))
        found = {"step_s": plain, "step_profiled_s": watched, "host_us": costs, "ranks": ranks}
        print(json.dumps({**found, "torch": torch.__version__, "nvrx": installed_version()}))
    kind = "gpu_relative" if ranks > 1 else "gpu_individual"
    lowest = min(report["scores"].get(kind, {}).get(str(last), 1.0) for report in reports)
    dist.barrier()
    dist.destroy_process_group()
    raise SystemExit(lowest > 0.7)


if __name__ == "__main__":
    main()
