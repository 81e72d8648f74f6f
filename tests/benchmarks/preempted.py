"""The script of the preemption benchmark: steps of a millisecond under one of three ways to agree on a signal.

*session*: ours. *stock*: an all-gather of the flag and its read-back in every step, as Megatron's signal handler
does it. *off*: nobody listens. Each rank leaves its figures as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from nemo_resiliency_plugins import runtime

STEP_S = 0.001
"""Slept, since more busy ranks than cores would measure the scheduler."""


def stock_vote(device: torch.device) -> Callable[[], bool]:
    flag = torch.zeros(1, dtype=torch.int32, device=device)
    flags = [torch.zeros_like(flag) for _ in range(dist.get_world_size())]

    def vote() -> bool:
        dist.all_gather(flags, flag)
        return any(int(each) for each in flags)

    return vote


def timed(vote: Callable[[], bool], ticks: list[float]) -> Callable[[], bool]:
    def tick() -> bool:
        began = time.perf_counter()
        told = vote()
        ticks.append(time.perf_counter() - began)
        return told

    return tick


def loop(session: runtime.Session, options: argparse.Namespace, tick: Callable[[], bool] | None) -> float:
    """Seconds of a step, with whatever is inside it; then the ranks leave, those that listen because of a signal."""
    began, step_s = time.perf_counter(), 0.0
    for step in session.steps(0, 2 * options.steps):
        time.sleep(STEP_S)
        if tick is not None:
            tick()
        if step == options.steps:
            step_s = (time.perf_counter() - began) / step
            leave(session, options)
    return step_s


def leave(session: runtime.Session, options: argparse.Namespace) -> None:
    if options.vote != "session":
        session.stop()
    elif dist.get_rank() == dist.get_world_size() - 1:
        (options.root / "signalled").write_text(str(time.time()))
        os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--vote", choices=("session", "stock", "off"), required=True)
    parser.add_argument("--steps", type=int, required=True)
    options = parser.parse_args()
    config = runtime.PreemptionConfig(exit_signal_handler=options.vote == "session")
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    ticks: list[float] = []
    with runtime.session(config) as session:
        dist.init_process_group("nccl" if cuda else "gloo", device_id=device if cuda else None)
        session.attach(save=lambda step: None, load=lambda step: None, latest=lambda: None)
        if options.vote == "session":
            preemption = session._features.preemption
            preemption.tick = timed(preemption.tick, ticks)  # type: ignore[method-assign]
        tick = timed(stock_vote(device), ticks) if options.vote == "stock" else None
        found = {"step_s": loop(session, options, tick), "ticks": ticks}
        (options.root / f"figures-{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
