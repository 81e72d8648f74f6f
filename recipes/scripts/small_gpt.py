"""A small GPT in plain PyTorch DDP, trained byte by byte on the source of the Python standard library.

Deterministic: the same number of ranks gives the same weights, bit for bit, however often the run is cut.
Lines that belong to nemo_resiliency_plugins are marked ``# nrp``.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sysconfig
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from nemo_resiliency_plugins import runtime  # nrp

BYTES = 256


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer, each behind a layer norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm_attention(x)).view(batch, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        mixed_in: torch.Tensor = x + self.mlp(self.norm_mlp(x))
        return mixed_in


class SmallGPT(nn.Module):
    """Predicts the next byte; (batch, length) of int64 in, (batch, length, 256) of float32 out."""

    def __init__(self, *, width: int, layers: int, heads: int, length: int) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(BYTES, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, BYTES)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        logits: torch.Tensor = self.head(self.norm(self.blocks(self.bytes(tokens) + self.places(places))))
        return logits


def standard_library(size: int) -> torch.Tensor:
    """The first ``size`` bytes of the standard library's top-level modules, in order of their names."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= size:
            break
    return torch.frombuffer(text[:size], dtype=torch.uint8).long()


def batch_of(text: torch.Tensor, step: int, rank: int, *, batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of one step on one rank: a function of both, so the data position is the step."""
    draw = torch.Generator().manual_seed(step * 100_003 + rank)
    starts = torch.randint(len(text) - length - 1, (batch,), generator=draw)
    window = torch.stack([text[start : start + length + 1] for start in starts])
    return window[:, :-1], window[:, 1:]


def digest(model: nn.Module) -> str:
    """A hash over all weights, by name."""
    total = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        total.update(name.encode())
        total.update(value.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoints", required=True, help="directory of the checkpoints")
    parser.add_argument("--result", type=Path, help="file for the hash of the final weights")
    numbers = {"steps": 60, "every": 5, "width": 192, "layers": 4, "heads": 4, "length": 64, "batch": 4}
    for name, value in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    return parser.parse_args()


def main() -> None:
    options = parse()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic only with it
    with runtime.session() as session:  # nrp
        device = torch.device("cpu")
        if torch.cuda.is_available():
            device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(device)
        dist.init_process_group("gloo" if device.type == "cpu" else "nccl")
        rank = dist.get_rank()
        torch.manual_seed(1)
        torch.use_deterministic_algorithms(True)
        model = SmallGPT(width=options.width, layers=options.layers, heads=options.heads, length=options.length)
        ddp = DistributedDataParallel(model.to(device))
        optimizer = torch.optim.AdamW(ddp.parameters(), lr=3e-4)
        text = standard_library(2**20)

        def forward_backward(step: int) -> torch.Tensor:
            inputs, targets = batch_of(text, step, rank, batch=options.batch, length=options.length)
            logits = ddp(inputs.to(device))
            loss = F.cross_entropy(logits.flatten(0, 1), targets.to(device).flatten())
            loss.backward()
            return loss

        state = {"model": ddp, "optimizer": optimizer}  # nrp
        start = session.attach(state, options.checkpoints, every=options.every)  # nrp
        session.settle(lambda: forward_backward(0))  # nrp
        for step in session.steps(start, options.steps):  # nrp
            optimizer.zero_grad()
            loss = forward_backward(step)
            optimizer.step()
            session.observe(loss)  # nrp
            if rank == 0 and step % 10 == 0:
                print(f"step {step}: loss {loss.item():.4f}", flush=True)
    if rank == 0 and options.result:
        options.result.write_text(digest(model) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    runtime.inprocess(main)()  # nrp: main itself, unless InProcessRestartPlugin asks for more
