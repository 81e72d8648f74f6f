"""The script of the recovery benchmark: the same model, loop and checkpoints under every launcher.

``--client stock`` reports sections to NVRx as its documentation shows; otherwise the session does, if asked to.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from nemo_resiliency_plugins import runtime

Section = Callable[[str], AbstractContextManager[None]]


def stock_sections() -> Section:
    """NVRx's own client, a message at the start and at the end of each section."""
    from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient

    client = RankMonitorClient()
    client.init_workload_monitoring()

    @contextlib.contextmanager
    def section(name: str) -> Iterator[None]:
        client.start_section(name)
        yield
        client.end_section(name)

    return section


def no_sections() -> Section:
    return lambda name: contextlib.nullcontext()


def main() -> None:
    options = parse()
    if options.in_process:
        runtime.inprocess(train)(options)
    else:
        train(options)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--client", choices=("stock", "session"), default="session")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--step-s", type=float, default=0.2)
    parser.add_argument("--in-process", action="store_true", help="under in-process restart")
    return parser.parse_args()


def train(options: argparse.Namespace) -> None:
    with runtime.session() as session:
        section = stock_sections() if options.client == "stock" else no_sections()
        with section("setup"):
            device = join()
            torch.manual_seed(1)
            model = DistributedDataParallel(torch.nn.Linear(256, 256, device=device))
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
            start = session.attach({"model": model, "optimizer": optimizer}, options.root / "checkpoints", every=1)
            batch = torch.ones(8, 256, device=device)
        log = (options.root / f"steps-{dist.get_rank()}.txt").open("a", buffering=1)
        for step in session.steps(start, options.steps):
            with section("step"):
                time.sleep(options.step_s)
                model(batch).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                finish(device)
            log.write(f"{time.time()} {step} {os.environ['TORCHELASTIC_RESTART_COUNT']}\n")
    dist.destroy_process_group()


def join() -> torch.device:
    """The ranks meet, each with a GPU of its own where there are any."""
    if not torch.cuda.is_available():
        dist.init_process_group("gloo")
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl", device_id=device)
    return device


def finish(device: torch.device) -> None:
    """A step is done when the GPU has done it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
