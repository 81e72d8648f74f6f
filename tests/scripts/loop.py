"""A loop that trains nothing: each step sleeps. Its checkpoint is a step number in a file of its own."""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections.abc import Callable

import tiny

from nemo_resiliency_plugins import runtime

POINTER = tiny.CHECKPOINTS / "step.txt"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--starts", type=int, nargs="*", default=[], help="the first step, for each cycle")
    parser.add_argument("--steps", type=int, default=10, help="steps after the first one of this cycle")
    parser.add_argument("--step-s", type=float, default=0.05)
    parser.add_argument("--slow-steps", type=int, default=0, help="so many steps of each start are slow")
    parser.add_argument("--slow-s", type=float, default=2.0)
    parser.add_argument("--every", type=int, default=0, help="checkpoints; 0: none at all")
    parser.add_argument("--stop-after", type=int, nargs="*", default=[], help="steps before SIGSTOP, for each cycle")
    parser.add_argument("--raise-at", type=int, nargs="*", default=[], help="a step for each cycle, on rank 1")
    parser.add_argument("--setup-s", type=float, default=0.0)
    parser.add_argument("--evaluate-s", type=float, default=0.0)
    parser.add_argument("--cut", action="store_true", help="close the monitor's socket in the middle")
    return parser.parse_args()


def save(step: int) -> None:
    POINTER.parent.mkdir(exist_ok=True)
    POINTER.write_text(str(step))


def load(step: int) -> None:
    tiny.say(f"loaded {step}")


def latest() -> int | None:
    return int(POINTER.read_text()) if POINTER.exists() else None


def join_ranks() -> Callable[[], object]:
    """Returns what makes the ranks wait for each other, as the all-reduce of a real step does."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return lambda: None
    import torch.distributed as dist

    dist.init_process_group("gloo")
    return dist.barrier


def work(session: runtime.Session, options: argparse.Namespace, done: int) -> None:
    if options.stop_after[tiny.CYCLE : tiny.CYCLE + 1] == [done]:
        os.kill(os.getpid(), signal.SIGSTOP)
    if tiny.RANK == 1 and options.raise_at[tiny.CYCLE : tiny.CYCLE + 1] == [done]:
        raise ValueError(f"bad batch at step {done}")
    time.sleep(options.slow_s if done < options.slow_steps else options.step_s)
    if done == options.steps - 3 and options.evaluate_s:
        with session.section("evaluation"):
            time.sleep(options.evaluate_s)
    if done == options.steps - 3 and options.cut:
        session._features.detection._monitor._client._client.rank_monitor_socket.close()  # type: ignore[attr-defined]


def main() -> None:
    options = parse()
    with runtime.session() as session:
        meet = join_ranks()
        time.sleep(options.setup_s)
        first = start = (options.starts or [0])[min(tiny.CYCLE, len(options.starts or [0]) - 1)]
        if options.every:
            start = session.attach(None, tiny.CHECKPOINTS, every=options.every, save=save, load=load, latest=latest)
        for step in session.steps(start, first + options.steps):
            tiny.log_step(step)
            work(session, options, step - first)
            meet()
    tiny.say("done")


if __name__ == "__main__":
    main()
