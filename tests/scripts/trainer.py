"""A tiny trainer: gloo ranks, a small DDP model, one all-reduce a step, checkpoints through the session."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import tiny
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from nemo_resiliency_plugins import runtime


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--every", type=int, default=0)
    parser.add_argument("--step-s", type=float, default=0.0)
    parser.add_argument("--hold-at", type=int, default=-1, help="a step that lasts until the file `go` is there")
    parser.add_argument("--end-with", help="the last step is the one in which this file is there")
    return parser.parse_args()


def build(rank: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    layers = [nn.Linear(16, 32), nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4)]
    model = nn.Sequential(*layers)
    torch.manual_seed(100 + rank)
    ddp = DistributedDataParallel(model)
    return ddp, torch.optim.AdamW(ddp.parameters(), lr=1e-2)


def forward_backward(model: nn.Module, step: int, rank: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(step * 1009 + rank)
    inputs = torch.randn(8, 16, generator=draw)
    loss = model(inputs).square().mean()
    loss.backward()
    return loss


def all_see(path: Path) -> bool:
    """Collective: whether rank 0 sees the file."""
    seen = torch.tensor([float(path.exists())])
    dist.broadcast(seen, src=0)
    return bool(seen)


def main() -> None:
    options = parse()
    with runtime.session() as session:
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        model, optimizer = build(rank)
        start = session.attach({"model": model, "optimizer": optimizer}, tiny.CHECKPOINTS, every=options.every)
        session.settle(lambda: forward_backward(model, 0, rank))
        for step in session.steps(start, options.steps):
            tiny.log_step(step)
            time.sleep(options.step_s)
            while step == options.hold_at and not (tiny.ROOT / "go").exists():
                time.sleep(0.05)
            optimizer.zero_grad()
            loss = forward_backward(model, step, rank)
            optimizer.step()
            session.observe(loss)
            if options.end_with and all_see(tiny.ROOT / options.end_with):
                session.stop()
    if rank == 0:
        (tiny.ROOT / "result.txt").write_text(tiny.digest(dict(model.state_dict())))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
