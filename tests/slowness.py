"""A training in which a rank can be slow in one phase of its steps; work is time asleep, so that no core is needed."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from nemo_resiliency_plugins import runtime
from nemo_resiliency_plugins.contract import encode_value, variable

WORK_S = 0.008
"""Seconds that each phase of a step takes."""


@dataclasses.dataclass(frozen=True)
class Slowness:
    """``ranks`` take ``extra_s`` longer in ``phase`` of each step from ``since`` on, and before ``until``."""

    phase: str = "data"
    ranks: tuple[int, ...] = ()
    extra_s: float = 8 * WORK_S
    since: int = 0
    until: int = 10**9

    def seconds(self, phase: str, step: int) -> float:
        slow = phase == self.phase and dist.get_rank() in self.ranks and self.since <= step < self.until
        return WORK_S + (self.extra_s if slow else 0.0)


@dataclasses.dataclass(frozen=True)
class Options:
    """``detection`` holds fields of NVRxStragglerDetectionConfig."""

    steps: int = 60
    slowness: Slowness = Slowness()
    sharded: bool = False
    micro_batches: int = 1
    sync_all: bool = False
    """Micro-batches without DDP's ``no_sync``."""
    buffers: bool = False
    """A batch norm, whose buffers DDP sends round before each forward pass."""
    skipped: tuple[int, ...] = ()
    """Steps without a forward and a backward pass."""
    attach: str = "model"
    """``model``; ``inner``: the module that DDP wraps; or ``nothing``."""
    destroy: bool = False
    """Destroy the process group within the session, as many scripts do."""
    detection: dict[str, Any] = dataclasses.field(default_factory=dict)


class Sleeping(nn.Module):
    """Takes its time in the forward and in the backward pass."""

    def __init__(self, slowness: Slowness) -> None:
        super().__init__()
        self.slowness, self.step = slowness, 0

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        time.sleep(self.slowness.seconds("forward", self.step))
        if value.requires_grad:
            value.register_hook(self._backward)
        return value * 1.0

    def _backward(self, gradient: torch.Tensor) -> None:
        time.sleep(self.slowness.seconds("backward", self.step))


class SlowSGD(torch.optim.SGD):
    slowness: Slowness
    at = 0

    def step(self, closure: Any = None) -> Any:
        time.sleep(self.slowness.seconds("optimizer", self.at))
        return super().step(closure)


def train(options: Options) -> None:
    fields = {"enabled": True, "report_time_interval": 0.5, **options.detection}
    os.environ.update({variable("straggler", name): encode_value(value) for name, value in fields.items()})
    os.environ["SLURMD_NODENAME"] = f"node{dist.get_rank()}"
    inner, model = build(options)
    optimizer = SlowSGD(model.parameters(), lr=1e-2)
    optimizer.slowness = options.slowness
    with runtime.session() as session:
        start = 0
        if options.attach != "nothing":
            state = {"model": model if options.attach == "model" else inner, "optimizer": optimizer}
            start = session.attach(state, Path(os.environ["TEST_ROOT"]) / "checkpoints")
        for step in session.steps(start, options.steps):
            inner.sleeping.step = optimizer.at = step
            optimizer.zero_grad()
            for number in range(options.micro_batches if step not in options.skipped else 0):
                time.sleep(options.slowness.seconds("data", step))
                with syncing(model, options.sync_all or number == options.micro_batches - 1):
                    model(torch.ones(2, 16)).square().mean().backward()
            optimizer.step()
        if options.destroy:
            dist.destroy_process_group()


def build(options: Options) -> tuple[nn.Module, nn.Module]:
    """The model, as it is and wrapped."""
    torch.manual_seed(1)
    inner = nn.Sequential(nn.Linear(16, 16))
    if options.buffers:
        inner.add_module("norm", nn.BatchNorm1d(16))
    inner.add_module("sleeping", Sleeping(options.slowness))
    inner.add_module("head", nn.Linear(16, 4))
    return inner, fully_shard(inner) if options.sharded else DistributedDataParallel(inner)


@contextlib.contextmanager
def syncing(model: nn.Module, sync: bool) -> Iterator[None]:
    """DDP's ``no_sync`` unless ``sync``."""
    if sync or not isinstance(model, DistributedDataParallel):
        yield
        return
    with model.no_sync():
        yield
