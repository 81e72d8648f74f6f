"""trainer.py with validated results, which are wrong from one step on, on the nodes that are named."""

from __future__ import annotations

import argparse
import os
import platform

import tiny
import torch
import torch.distributed as dist
import trainer

from nemo_resiliency_plugins import runtime

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--at", type=int, default=7)
parser.add_argument("--nan-on", nargs="*", default=[], help="nodes whose loss is NaN in step --at")
parser.add_argument("--poison", action="store_true", help="the first attempt has NaN in its weights from step --at on")
options = parser.parse_args()
node = os.environ.get("SLURMD_NODENAME") or platform.node()
first_attempt = os.environ.get("SLURM_RESTART_COUNT", "0") == "0"

with runtime.session() as session:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model, optimizer = trainer.build(rank)

    def forward_backward(step: int) -> torch.Tensor:
        loss = trainer.forward_backward(model, step, rank)
        return loss * float("nan") if step == options.at and node in options.nan_on else loss

    start = session.attach({"model": model, "optimizer": optimizer}, tiny.CHECKPOINTS, every=3)
    session.settle(lambda: trainer.forward_backward(model, 0, rank))
    for step in session.steps(start, options.steps):
        tiny.log_step(step)
        optimizer.zero_grad()
        session.checked(forward_backward, step)
        optimizer.step()
        if options.poison and first_attempt and step == options.at:
            with torch.no_grad():
                next(model.parameters()).fill_(float("nan"))
if rank == 0:
    (tiny.ROOT / "result.txt").write_text(tiny.digest(dict(model.state_dict())))
dist.destroy_process_group()
