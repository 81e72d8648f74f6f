"""What result validation costs a step on a GPU, and how long the card has nothing to do because of it.

Run on a machine with a GPU: ``python -m tests.device.rerun``, under torchrun for several; ``--device cpu`` shows only
that it runs. Prints a line of JSON for each mode: the median step, and from a profiler's trace the longest time in a
step between two kernels. The exit code is 1 where a step takes more than 1 % longer, besides reading all gradients.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import math
import os
import statistics
import sys
import tempfile
import time
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from nemo_resiliency_plugins import runtime
from nemo_resiliency_plugins.contract import Attempt
from nemo_resiliency_plugins.runtime.agreement import Ranks
from nemo_resiliency_plugins.runtime.events import EventLog
from nemo_resiliency_plugins.runtime.rerun.gradients import sum_of
from nemo_resiliency_plugins.runtime.rerun.validation import Validation

MODES: dict[str, dict[str, Any]] = {
    "off": {"rerun_mode": "disabled"},
    "loss": {"rerun_mode": "validate_results", "check_for_nan_in_gradients": False},
    "gradients": {"rerun_mode": "validate_results", "check_for_nan_in_gradients": True},
}
CUDA = torch.autograd.DeviceType.CUDA
WARM, STEPS, TRACED = 20, 300, 10
BLOCK = 20
"""Steps between two waits for the device, so that the host is ahead of it as in a training."""
MOST = 1.01


@dataclasses.dataclass(frozen=True)
class Size:
    """About 33 ms of a step on an H200; a tenth of a millisecond on a CPU."""

    width: int
    layers: int
    rows: int


SIZES = {"cuda": Size(width=8192, layers=8, rows=8192), "cpu": Size(width=64, layers=4, rows=8)}


def train(mode: str, device: torch.device) -> tuple[list[float], list[float]]:
    """Milliseconds of a step in each block, and the microseconds between the kernels of a few traced ones."""
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

    times: list[float] = []
    gaps: list[float] = []
    config = runtime.RerunStateMachineConfig(**MODES[mode])
    with tempfile.TemporaryDirectory() as root, runtime.session(config) as session:
        session.attach({"model": model, "optimizer": optimizer}, root)
        last = WARM + STEPS
        traced = range(last, last + (TRACED if device.type == "cuda" else 0))
        trace = profile(activities=[ProfilerActivity.CUDA])
        for step in session.steps(0, traced.stop + 1):
            if traced and step == traced.start:
                trace.start()
            if traced and step == traced.stop:
                trace.stop()  # before the session saves
            if step % BLOCK == 0:
                _wait_for(device)
                times.append(time.perf_counter())
            optimizer.zero_grad()
            session.checked(forward_backward, batch)
            optimizer.step()
        if traced:
            gaps = gaps_between_kernels(trace)
    took = [(after - before) * 1e3 / BLOCK for before, after in itertools.pairwise(times)]
    return took[WARM // BLOCK :], gaps


def early_and_late(device: torch.device) -> None:
    """That losses are read when they have their value, although the host is far ahead, and gradients are looked at."""
    weight = nn.Parameter(torch.ones(SIZES[device.type].width, device=device))
    big = torch.ones(SIZES[device.type].width, SIZES[device.type].width, device=device)

    def slow_product() -> torch.Tensor:
        product = weight
        for _ in range(20):
            product = big @ product / len(big)
        return product.mean()

    def early(value: float) -> torch.Tensor:
        loss = slow_product() * value
        loss.backward()
        return loss.detach()

    def late(value: float) -> torch.Tensor:
        (slow_product() * 2).backward()
        return slow_product().detach() * value

    def bad_gradients(value: float) -> torch.Tensor:
        early(1.0)
        assert weight.grad is not None
        weight.grad[3] *= value
        return torch.ones((), device=device)

    config = runtime.RerunStateMachineConfig(rerun_mode="validate_results")
    for function, value in [(early, 1.0), (late, 3.0), (early, math.inf), (late, math.nan), (bad_gradients, math.inf)]:
        weight.grad = None
        model = nn.ParameterList([weight])
        found = []
        validation = Validation(config, [model], Ranks(), node="", directory=None, events=EventLog(None, Attempt(), 0))
        with contextlib.suppress(SystemExit):
            found.append(float(validation.run(0, function, [value] * 3, leave)) / 3)
        validation.close()
        assert found == ([value] if math.isfinite(value) else []), (function.__name__, value, found)


def leave(*_: Any) -> NoReturn:
    raise SystemExit(16)


def gaps_between_kernels(trace: Any) -> list[float]:
    """Microseconds, in the second half of the trace: at first the profiler itself makes the host wait."""
    busy = sorted(
        (event.time_range.start, event.time_range.end) for event in trace.events() if event.device_type == CUDA
    )
    end, gaps = busy[0][1], []
    for begin, until in busy[len(busy) // 2 :]:
        gaps.append(begin - end)
        end = max(end, until)
    return gaps[1:]


def reading_ms() -> float:
    """How long the device takes to read all gradients once: what looking at them costs at least."""
    size = SIZES["cuda"]
    gradients = [torch.ones(size.width, size.width, device="cuda", dtype=torch.bfloat16) for _ in range(size.layers)]
    took = []
    for _ in range(WARM):
        began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        began.record()
        sum_of(gradients)
        ended.record()
        torch.cuda.synchronize()
        took.append(began.elapsed_time(ended))
    return statistics.median(took)


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
    early_and_late(device)
    medians: dict[str, float] = {}
    for mode in MODES:
        took, gaps = train(mode, device)
        medians[mode] = statistics.median(took)
        found = {"mode": mode, "step_ms": medians[mode], "times_off": medians[mode] / medians["off"]}
        if dist.get_rank() == 0:
            print(json.dumps({**found, "longest_gap_us": max(gaps, default=None)}), flush=True)
    dist.destroy_process_group()
    sys.exit(kind == "cuda" and not _is_cheap(medians))


def _is_cheap(medians: dict[str, float]) -> bool:
    reading = reading_ms()
    print(json.dumps({"reading_the_gradients_ms": reading}))
    allowed = MOST * medians["off"]
    return medians["loss"] <= allowed and medians["gradients"] <= allowed + reading


if __name__ == "__main__":
    main()
