"""Async and local checkpoints on GPUs: what is written is what the step had, and what that costs the training.

Run on a machine with GPUs, with or without torchrun: ``python -m tests.device.ckpt_async --gb 2``. Prints one line of
JSON; an exit code other than 0 means that something that was read back differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from nemo_resiliency_plugins.compat.nvrx import installed_version
from nemo_resiliency_plugins.config import CheckpointConfig
from nemo_resiliency_plugins.contract import Attempt
from nemo_resiliency_plugins.runtime.agreement import Ranks
from nemo_resiliency_plugins.runtime.checkpoint.manager import DcpCheckpointer
from nemo_resiliency_plugins.runtime.checkpoint.reporting import Reporter
from nemo_resiliency_plugins.runtime.events import EventLog

WIDTH = 4096
BYTES_A_LAYER = WIDTH * WIDTH * 4 * 3
SAVES = 4


class Training:
    """A sharded model with Adam's moments of about ``gb`` GB over all ranks."""

    def __init__(self, gb: float) -> None:
        torch.manual_seed(1)
        layers = max(1, int(gb * 1e9 / BYTES_A_LAYER))
        self.model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, device="cuda") for _ in range(layers)))
        if dist.get_world_size() > 1:
            fully_shard(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.step()

    def step(self) -> float:
        """Seconds of one step, the GPU's work included."""
        began = time.perf_counter()
        self.optimizer.zero_grad()
        self.model(torch.ones(4096, WIDTH, device="cuda")).square().mean().backward()
        self.optimizer.step()
        torch.cuda.synchronize()
        return time.perf_counter() - began

    def digest(self) -> str:
        total = hashlib.sha256()
        for parameter in self.model.parameters():
            for value in (parameter, *self.optimizer.state[parameter].values()):
                local = value.to_local() if isinstance(value, DTensor) else value
                total.update(local.detach().cpu().contiguous().numpy().tobytes())
        return total.hexdigest()

    def checkpointer(self, root: Path, **fields: Any) -> DcpCheckpointer:
        rank = dist.get_rank()
        reporter = Reporter(rank, EventLog(None, Attempt(), rank), lambda step, seconds: None)
        state = {"model": self.model, "optimizer": self.optimizer}
        node = f"node{rank}"  # each rank counts as a node, so that replicas are exchanged
        config = CheckpointConfig(**fields)
        return DcpCheckpointer(root, state, Ranks(), reporter, keep=9, config=config, node=node)


def measure(training: Training, root: Path) -> tuple[dict[str, float], dict[int, str]]:
    """Times of async saves, and the digest of the state at each."""
    saving = training.checkpointer(root, async_save=True)
    alone = [training.step() for _ in range(20)]
    stalls, durables, meanwhile, digests = [], [], [], {}
    for number in range(SAVES):
        digests[number] = training.digest()
        began = time.perf_counter()
        saving.save(number, None)
        stalls.append(time.perf_counter() - began)
        writer = saving._saver._writer  # type: ignore[attr-defined]
        while writer is not None and writer.is_alive():
            meanwhile.append(training.step())
        saving.drain()
        durables.append(time.perf_counter() - began)
    saving.close()
    times = {
        "stall_s": statistics.median(stalls[1:]),
        "durable_s": statistics.median(durables[1:]),
        "step_s": statistics.median(alone),
        "step_while_writing_s": statistics.median(meanwhile or [0.0]),
    }
    return times, digests


def read_back(gb: float, root: Path, digests: dict[int, str]) -> list[int]:
    """The saves that do not hold the values of their own step; removes the newest one each time."""
    wrong = []
    for number in sorted(digests, reverse=True):
        training = Training(gb)
        resumed = training.checkpointer(root).resume()
        if (resumed, training.digest()) != (number, digests[number]):
            wrong.append(number)
        dist.barrier()
        if dist.get_rank() == 0:
            (root / f"step_{number:09d}" / "COMMITTED").unlink()
        dist.barrier()
    return wrong


def local_is_whole(gb: float, root: Path) -> bool:
    """Save to the local tier only, lose the disk of the last rank, and read back."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    place = root / f"local-{rank}"
    fields = {"non_persistent_local_ckpt_dir": str(place), "non_persistent_save_interval": 1}
    training = Training(gb)
    expected = training.digest()
    saving = training.checkpointer(root / "global", async_save=True, **fields)
    saving.save_locally(1)
    training.step()
    saving.drain()
    saving.close()
    if ranks > 1 and rank == ranks - 1:
        place.rename(root / "lost")
    again = Training(gb)
    again.step()
    return again.checkpointer(root / "global", **fields).resume() == 1 and again.digest() == expected


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gb", type=float, default=2.0, help="size of the whole state")
    parser.add_argument("--root", type=Path, help="a directory that all ranks share")
    options = parser.parse_args()
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    store = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group("cpu:gloo,cuda:nccl", **store)
    shared = [str(options.root or tempfile.mkdtemp(dir="/dev/shm"))]
    dist.broadcast_object_list(shared, src=0, device=torch.device("cpu"))
    root = Path(shared[0])
    times, digests = measure(Training(options.gb), root / "async")
    wrong = read_back(options.gb, root / "async", digests)
    whole = local_is_whole(options.gb, root)
    found = {**times, "wrong": wrong, "local_is_whole": whole, "ranks": dist.get_world_size(), "gb": options.gb}
    if dist.get_rank() == 0:
        print(json.dumps({**found, "torch": torch.__version__, "nvrx": installed_version()}))
    dist.destroy_process_group()
    raise SystemExit(bool(wrong) or not whole)


if __name__ == "__main__":
    main()
