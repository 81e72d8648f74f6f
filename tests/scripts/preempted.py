"""A small DDP trainer to be signalled: uneven steps, an evaluation, a slow save, loader workers, a late rank."""

from __future__ import annotations

import argparse
import atexit
import os
import random
import time

import tiny
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from nemo_resiliency_plugins import runtime


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=0)
    parser.add_argument("--step-s", type=float, default=0.02, help="half to one and a half times that, by rank")
    parser.add_argument("--setup-s", type=float, default=0.0)
    parser.add_argument("--evaluate-at", type=int, default=-1, help="a step with an evaluation of minutes")
    parser.add_argument("--wait-at", type=int, default=-1, help="a step in which rank 0 comes seconds late")
    parser.add_argument("--save-s", type=float, default=0.0, help="a save of the user's own, that takes so long")
    parser.add_argument("--workers", type=int, default=0, help="of a data loader")
    parser.add_argument("--unattached", action="store_true")
    parser.add_argument("--destroy-inside", action="store_true", help="the process groups, in the session's block")
    return parser.parse_args()


class Batches:
    """A data set whose workers leave their pids."""

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> torch.Tensor:
        if os.getpid() != RANK_PID:
            (tiny.ROOT / f"worker-{os.getpid()}").touch()
        return torch.full((16,), float(index % 7))


RANK_PID = os.getpid()


class Trainer:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.rank = options, dist.get_rank()
        torch.manual_seed(1)
        self.model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.batches = iter(DataLoader(Batches(), num_workers=options.workers)) if options.workers else None
        self.draw = random.Random(os.getpid())

    def attach(self, session: runtime.Session) -> int:
        if self.options.unattached:
            return 0
        if not self.options.save_s:
            state = {"model": self.model, "optimizer": self.optimizer}
            return session.attach(state, tiny.CHECKPOINTS, every=self.options.every)
        return session.attach(
            every=self.options.every, save=self.save_slowly, load=lambda step: None, latest=lambda: None
        )

    def save_slowly(self, step: int) -> None:
        tiny.say(f"saving {step}")
        time.sleep(self.options.save_s)
        tiny.say(f"saved {step}")

    def forward_backward(self, step: int) -> torch.Tensor:
        inputs = torch.randn(8, 16, generator=torch.Generator().manual_seed(step * 1009 + self.rank))
        if self.batches is not None:
            inputs = inputs + next(self.batches)
        loss = self.model(inputs).square().mean()
        loss.backward()
        return loss

    def step(self, step: int, session: runtime.Session) -> None:
        time.sleep(self.options.step_s * (0.5 + self.draw.random()))
        if step == self.options.wait_at and self.rank == 0:
            tiny.say("late")
            time.sleep(3.0)
        self.optimizer.zero_grad()
        session.observe(self.forward_backward(step))
        self.optimizer.step()
        if step == self.options.evaluate_at:
            self.evaluate(session)

    def evaluate(self, session: runtime.Session) -> None:
        for batch in range(6000):
            if session.should_stop():
                tiny.say(f"evaluated {batch}")
                return
            time.sleep(0.01)
            if batch == 0:
                tiny.say("evaluating")
            dist.all_reduce(torch.zeros(1))


def main() -> None:
    options = parse()
    atexit.register(tiny.say, "hooks ran")
    with runtime.session() as session:
        tiny.say("set-up")
        time.sleep(options.setup_s)
        dist.init_process_group("gloo")
        trainer = Trainer(options)
        start = trainer.attach(session)
        if not (options.save_s or options.unattached):
            session.settle(lambda: trainer.forward_backward(0))
        for step in session.steps(start, options.steps):
            tiny.log_step(step)
            trainer.step(step, session)
        if options.destroy_inside:
            dist.destroy_process_group()
            time.sleep(1.2)  # two rounds of a vote
    reason = session.stop_reason
    tiny.say(f"stopped: {reason.value if reason else None}")
    if tiny.RANK == 0 and reason is not None and reason.value == "finished":
        (tiny.ROOT / "result.txt").write_text(tiny.digest(dict(trainer.model.state_dict())))
    if not options.destroy_inside:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
