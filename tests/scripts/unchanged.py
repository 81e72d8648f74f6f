"""A DDP training that knows nothing of us, with checkpoints, an evaluation and a handler of its own."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path
from typing import Any

import tiny
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CHECKPOINT = tiny.CHECKPOINTS / "training.pt"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--step-s", type=float, default=0.05)
    parser.add_argument("--raise-at", type=int, default=-1)
    parser.add_argument("--handler", action="store_true", help="save at SIGTERM, and exit with 0")
    return parser.parse_args()


def save(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    torch.save(content, path.with_suffix(".tmp"))
    path.with_suffix(".tmp").replace(path)


def main() -> None:
    options = parse()
    told = []
    if options.handler:
        signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    start = 0
    if CHECKPOINT.exists():
        state = torch.load(CHECKPOINT, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        start = state["step"]
    for step in range(start, options.steps):
        tiny.log_step(step)
        if step == options.raise_at and tiny.CYCLE == 0:
            raise ValueError("bad batch")
        time.sleep(options.step_s)
        inputs = torch.randn(8, 16, generator=torch.Generator().manual_seed(step * 1009 + tiny.RANK))
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        flag = torch.tensor(float(bool(told)))
        dist.all_reduce(flag)
        dist.barrier()
        if tiny.RANK == 0 and ((step + 1) % 5 == 0 or flag):
            save(CHECKPOINT, {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1})
        dist.barrier()
        if flag:
            tiny.say(f"saved {step + 1} and left")
            sys.exit(0)
    if tiny.RANK == 0:
        (tiny.ROOT / "result.txt").write_text(tiny.digest(dict(model.module.state_dict())))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
