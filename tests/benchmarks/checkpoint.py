"""What a save costs the training: stock DCP, sync and async, against the session's, on tmpfs and on disk.

Two gloo ranks train a model of a few hundred MB with its optimizer. Writes ``build/bench.json`` (``ckpt.*``, seconds).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.checkpoint.state_dict_saver import async_save, save

from nemo_resiliency_plugins.config import CheckpointConfig
from nemo_resiliency_plugins.contract import Attempt
from nemo_resiliency_plugins.runtime.agreement import Ranks
from nemo_resiliency_plugins.runtime.checkpoint import checksums
from nemo_resiliency_plugins.runtime.checkpoint.manager import DcpCheckpointer
from nemo_resiliency_plugins.runtime.checkpoint.reporting import Reporter
from nemo_resiliency_plugins.runtime.events import EventLog
from tests.benchmarks import report
from tests.ranks import run

RANKS = 2
WIDTH, LAYERS = 2048, 4
SAVES = 3
DISKS = {"tmpfs": Path("/dev/shm"), "disk": Path(tempfile.gettempdir())}


@dataclasses.dataclass
class Training:
    """A model with Adam's two moments: 12 bytes a parameter."""

    model: nn.Module
    optimizer: torch.optim.Optimizer

    @classmethod
    def build(cls) -> Training:
        torch.manual_seed(1)
        model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
        training = cls(model, torch.optim.AdamW(model.parameters(), lr=1e-4))
        training.step()
        return training

    def step(self) -> float:
        """Seconds of one step."""
        began = time.perf_counter()
        self.optimizer.zero_grad()
        self.model(torch.ones(64, WIDTH)).square().mean().backward()
        self.optimizer.step()
        return time.perf_counter() - began

    def stock_state(self) -> dict[str, Any]:
        return {
            "model": get_model_state_dict(self.model),
            "optimizer": get_optimizer_state_dict(self.model, self.optimizer),
        }


Scheduled = tuple[Callable[[], bool], Callable[[], object]]
"""Whether a save is still being written, and how to wait for it."""


def stock_sync(training: Training, root: Path) -> Callable[[int], Scheduled]:
    def once(number: int) -> Scheduled:
        save(training.stock_state(), checkpoint_id=root / f"{number}")
        return (lambda: False), (lambda: None)

    return once


def stock_async(training: Training, root: Path) -> Callable[[int], Scheduled]:
    group = dist.new_group(backend="gloo")

    def once(number: int) -> Scheduled:
        future = async_save(training.stock_state(), checkpoint_id=root / f"{number}", process_group=group)
        assert isinstance(future, Future)
        return (lambda: not future.done()), future.result

    return once


def ours(training: Training, root: Path, *, background: bool) -> Callable[[int], Scheduled]:
    reporter = Reporter(dist.get_rank(), EventLog(None, Attempt(), 0), lambda step, seconds: None)
    state = {"model": training.model, "optimizer": training.optimizer}
    config = CheckpointConfig(async_save=background)
    checkpointer = DcpCheckpointer(root, state, Ranks(), reporter, keep=9, config=config)

    def once(number: int) -> Scheduled:
        checkpointer.save(number, None)
        thread = getattr(checkpointer._saver, "_writer", None)
        return (lambda: thread is not None and thread.is_alive()), checkpointer.drain

    return once


VARIANTS = {
    "dcp_save": stock_sync,
    "dcp_async_save": stock_async,
    "ours_sync": partial(ours, background=False),
    "ours_async": partial(ours, background=True),
}


def measure(variant: str, disk: Path) -> None:
    """On each rank: several saves, with steps while they are written; rank 0 leaves what it has found."""
    training = Training.build()
    once = VARIANTS[variant](training, disk)
    alone = [training.step() for _ in range(10)]
    found: dict[str, list[float]] = {"stall": [], "durable": [], "step": alone, "step_while_writing": []}
    for number in range(SAVES + 1):
        dist.barrier()
        began = time.perf_counter()
        busy, wait = once(number)
        stall = time.perf_counter() - began
        steps = []
        while busy():
            steps.append(training.step())
        wait()
        if number > 0:  # the first one warms up: buffers, pages, imports
            found["stall"].append(stall)
            found["durable"].append(time.perf_counter() - began)
            found["step_while_writing"] += steps[:-1]
    if dist.get_rank() == 0:
        (disk / "found.json").write_text(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("build/bench.json"))
    output = parser.parse_args().output
    found: dict[str, list[float]] = {}
    ratios: dict[str, float] = {}
    for name, place in DISKS.items():
        for variant in VARIANTS:
            root = Path(tempfile.mkdtemp(dir=place))
            run(root, RANKS, measure, variant, root, deadline_s=300)
            measured = json.loads((root / "found.json").read_text())
            if variant == "ours_async":
                found[f"ckpt.{name}.checksums_s"] = [verification(root)]
            shutil.rmtree(root)
            for key in ("stall", "durable"):
                found[f"ckpt.{name}.{variant}.{key}_s"] = measured[key]
            if measured["step_while_writing"]:
                slower = statistics.median(measured["step_while_writing"]) / statistics.median(measured["step"])
                ratios[f"ckpt.{name}.{variant}.step_ratio"] = round(slower, 2)
    report.show(found, {}, ratios)
    report.save(output, found, {}, ratios)


def verification(root: Path) -> float:
    """Seconds to sum up one whole checkpoint in one process."""
    newest = max(root.glob("step_*"))
    began = time.perf_counter()
    checksums.of_files(newest.iterdir())
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
