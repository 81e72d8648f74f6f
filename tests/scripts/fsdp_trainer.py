"""The tiny trainer under FSDP2: what is saved and compared is spread over the ranks."""

from __future__ import annotations

import time

import tiny
import torch
import torch.distributed as dist
import trainer
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from nemo_resiliency_plugins import runtime


def whole(model: nn.Module) -> dict[str, object]:
    """The parameters; each rank takes part in the gathering."""
    values = model.state_dict().items()
    return {name: value.full_tensor() if isinstance(value, DTensor) else value for name, value in values}


def main() -> None:
    options = trainer.parse()
    with runtime.session() as session:
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
        fully_shard(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        start = session.attach({"model": model, "optimizer": optimizer}, tiny.CHECKPOINTS, every=options.every)
        for step in session.steps(start, options.steps):
            tiny.log_step(step)
            time.sleep(options.step_s)
            optimizer.zero_grad()
            loss = trainer.forward_backward(model, step, rank)
            optimizer.step()
            session.observe(loss)
    weights = tiny.digest(whole(model))
    if rank == 0:
        (tiny.ROOT / "result.txt").write_text(weights)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
