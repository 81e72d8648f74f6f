"""A training whose results go wrong on demand: what the tests of result validation run."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from nemo_resiliency_plugins import runtime
from nemo_resiliency_plugins.contract import encode_value, variable
from tests.slowness import syncing
from tests.training import digest, note, root

NAN, INF = float("nan"), float("inf")


@dataclasses.dataclass(frozen=True)
class Bad:
    """In ``micro_batch`` of ``step`` the loss of ``rank`` is multiplied by ``factor``; None stands for all.

    ``in_gradients``: not the loss, but the gradient of the last layer, as it is computed. ``on``: only there.
    ``times``: so many runs of the step in this process, -1 for all.
    """

    step: int = 4
    rank: int | None = 2
    micro_batch: int = 1
    factor: float = NAN
    in_gradients: bool = False
    on: str | None = None
    times: int = -1


@dataclasses.dataclass(frozen=True)
class Options:
    """``results`` holds fields of RerunStateMachineConfig; ``nodes`` is the number of this start's first node."""

    steps: int = 7
    every: int = 3
    micro_batches: int = 2
    bad: Sequence[Bad] = ()
    results: dict[str, Any] = dataclasses.field(default_factory=dict)
    nodes: int = 0
    sharded: bool = False
    directory: str = "checkpoints"
    poison_after: int | None = None
    """After this step the weights hold NaN."""
    noise: float = 0.0
    """The loss of rank 2 differs by up to so much from run to run."""


class Step(nn.Module):
    """Dropout and BatchNorm: a step that changes random numbers and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Dropout(0.2))
        self.head = nn.Linear(8, 4)
        self.factor: float | None = None

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.body(value))
        if self.factor is not None:
            factor = self.factor
            out.register_hook(lambda gradient: gradient * factor)
        return out


class Injection:
    """Counts the runs of each fault in this process."""

    def __init__(self, bad: Sequence[Bad], node: str) -> None:
        self._bad = [[each, each.times] for each in bad if each.on in (None, node)]

    def at(self, step: int, micro_batch: int) -> Bad | None:
        for entry in self._bad:
            bad, left = entry
            if (bad.step, bad.micro_batch) == (step, micro_batch) and bad.rank in (None, dist.get_rank()) and left:
                entry[1] -= 1
                return bad
        return None


def train(options: Options) -> None:
    rank = dist.get_rank()
    node = f"node{options.nodes + rank}"
    os.environ["SLURMD_NODENAME"] = node
    fields = {"rerun_mode": "validate_results", "spike_warmup_steps": 0, **options.results}
    os.environ.update({variable("rerun_state_machine", name): encode_value(value) for name, value in fields.items()})
    injection, noise = Injection(options.bad, node), torch.Generator().manual_seed(5)
    torch.manual_seed(1)
    inner = Step()
    model = fully_shard(inner) if options.sharded else DistributedDataParallel(inner)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def forward_backward(work: tuple[int, int]) -> torch.Tensor:
        step, number = work
        bad = injection.at(step, number)
        inner.factor = bad.factor if bad and bad.in_gradients else None
        draw = torch.Generator().manual_seed(step * 1009 + number * 101 + rank)
        with syncing(model, number == options.micro_batches - 1):
            loss = model(torch.randn(8, 16, generator=draw)).square().mean() / options.micro_batches
            if bad and not bad.in_gradients:
                loss = loss * bad.factor
            loss.backward()
        return loss + options.noise * float(torch.rand((), generator=noise)) * (rank == 2)

    with runtime.session() as session:
        torch.manual_seed(100 + rank)
        state = {"model": model, "optimizer": optimizer}
        start = session.attach(state, root() / options.directory, every=options.every)
        note("from", start, digest(model, optimizer))
        session.settle(lambda: forward_backward((-1, options.micro_batches - 1)))
        for step in session.steps(start, options.steps):
            optimizer.zero_grad()
            loss = session.checked(forward_backward, *((step, number) for number in range(options.micro_batches)))
            note("loss", step, repr(float(loss)))
            optimizer.step()
            if step == options.poison_after:
                with torch.no_grad():
                    inner.head.weight.fill_(NAN)
    note("to", options.steps, digest(model, optimizer))
