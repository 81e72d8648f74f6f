"""Rank 1 raises inside a step; its caller catches that and waits longer than the step limit."""

from __future__ import annotations

import time

import tiny
import torch.distributed as dist

from nemo_resiliency_plugins import runtime


def train(steps: int) -> None:
    with runtime.session() as session:
        dist.init_process_group("gloo")
        session.attach(None, None, save=print, load=print, latest=lambda: None)
        for step in session.steps(0, 1000):
            tiny.log_step(step)
            time.sleep(0.1)
            if step == steps:
                began = time.monotonic()
                raise ArithmeticError(f"{began}")


try:
    train(8 if tiny.RANK == 1 else 60)
except ArithmeticError as error:
    tiny.say(f"left in {time.monotonic() - float(str(error)):.3f} s")
time.sleep(3.0)
tiny.say("done")
