"""The script of the overhead benchmark: one loop, bare, in a session with everything on, or with stock parts.

Stock parts are NVRx's sections around each step, a vote by an all-gather in each step, as in Megatron-LM's signal
handler, and on GPUs NVRx's detector around each step. Run by ``ft_launcher``.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import itertools
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from nemo_resiliency_plugins import runtime
from nemo_resiliency_plugins.compat import nvrx_stragglers
from nemo_resiliency_plugins.runtime.stragglers import gpu
from tests.benchmarks.train import stock_sections

Loop = AbstractContextManager[Iterator[int]]
WAITS = ("cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize", "cudaMemcpy")
FAR = 1 << 30
"""More steps than there are: the only save is that of the end."""


class Work:
    """A training step of about ``step_s``: real passes and a real optimizer, and a wait for the rest of the time."""

    def __init__(self, device: torch.device) -> None:
        torch.manual_seed(1)
        self.step_s = 0.0
        self.model = DistributedDataParallel(nn.Linear(64, 64, device=device))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-6)
        self._batch = torch.ones(8, 64, device=device)

    def step(self) -> None:
        end = time.perf_counter() + self.step_s
        self.model(self._batch).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        while time.perf_counter() < end:
            pass


@contextlib.contextmanager
def bare(work: Work, steps: int, root: Path) -> Iterator[Iterator[int]]:
    yield iter(range(steps))


@contextlib.contextmanager
def ours(work: Work, steps: int, root: Path) -> Iterator[Iterator[int]]:
    configs = [
        runtime.FaultToleranceConfig(enable_ft_package=True, calc_ft_timeouts=True),
        runtime.PreemptionConfig(exit_signal_handler=True),
        runtime.NVRxStragglerDetectionConfig(enabled=True),
        runtime.CheckpointConfig(async_save=True),
    ]
    with runtime.session(configs) as session:
        session.attach({"model": work.model, "optimizer": work.optimizer}, root / "checkpoints", every=FAR)
        yield session.steps(0, steps)


@contextlib.contextmanager
def ours_host_side(work: Work, steps: int, root: Path) -> Iterator[Iterator[int]]:
    """Without the times of kernels, so that torch's profiler can see what the host does."""
    absent = mock.Mock(side_effect=nvrx_stragglers.KernelTimesUnavailable("left out"))
    with mock.patch.object(gpu, "KernelTimes", absent), ours(work, steps, root) as loop:
        yield loop


@contextlib.contextmanager
def stock(work: Work, steps: int, root: Path) -> Iterator[Iterator[int]]:
    section, detect = stock_sections(), stock_detection()

    def loop() -> Iterator[int]:
        for step in range(steps):
            with section("step"), detect():
                yield step
            stock_vote()

    yield loop()


@contextlib.contextmanager
def detector(work: Work, steps: int, root: Path) -> Iterator[Iterator[int]]:
    """NVRx's detector alone."""
    detect = stock_detection()

    def loop() -> Iterator[int]:
        for step in range(steps):
            with detect():
                yield step

    yield loop()


def stock_detection() -> Callable[[], AbstractContextManager[None]]:
    if not torch.cuda.is_available():
        return contextlib.nullcontext
    Detector = importlib.import_module(nvrx_stragglers.home()).Detector
    Detector.initialize(report_time_interval=300.0, gather_on_rank0=True)
    return lambda: Detector.detection_section("step", profile_cuda=True)


def stock_vote() -> bool:
    """All ranks tell all others whether they have a signal, and read it at once."""
    mine = torch.zeros(1, dtype=torch.int32, device="cuda" if torch.cuda.is_available() else "cpu")
    said = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(said, mine)
    return bool(torch.stack(said).any().item())


LOOPS: dict[str, Callable[[Work, int, Path], Loop]] = {
    "bare": bare,
    "ours": ours,
    "ours_host_side": ours_host_side,
    "stock": stock,
    "detector": detector,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--loop", choices=LOOPS, required=True)
    parser.add_argument("--steps", type=json.loads, required=True, help="how many, by the milliseconds of a step")
    parser.add_argument("--traced", type=int, default=0, help="further steps, which are profiled instead of timed")
    options = parser.parse_args()
    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    if device.type == "cuda":
        torch.cuda.set_device(dist.get_rank())
    work = Work(device)
    total = sum(options.steps.values()) + options.traced + 1
    with LOOPS[options.loop](work, total, options.root) as steps:
        took = {step_ms: timed(work, step_ms, steps, count) for step_ms, count in options.steps.items()}
        waits = traced(work, itertools.islice(steps, options.traced)) if options.traced else Counter()
        for _ in steps:
            work.step()
    if dist.get_rank() == 0:
        (options.root / "found.json").write_text(json.dumps({"took": took, "waits": waits}))
    dist.destroy_process_group()


def timed(work: Work, step_ms: str, steps: Iterator[int], count: int) -> list[float]:
    """Seconds from the end of a step to the end of the next, the first tenth left out."""
    work.step_s = float(step_ms) / 1e3
    took, last = [], time.perf_counter()
    for _ in itertools.islice(steps, count):
        work.step()
        now = time.perf_counter()
        took.append(now - last)
        last = now
    return took[count // 10 :]


def traced(work: Work, steps: Iterable[int]) -> Counter[str]:
    """How often the host waited for the GPU, by the call of the CUDA runtime."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
        for _ in steps:
            work.step()
    return Counter(event.name for event in trace.events() if event.name in WAITS)


if __name__ == "__main__":
    main()
