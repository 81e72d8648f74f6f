"""The share of time that ends up in the weights at sizes that nobody has at hand: a simulation of failures.

It takes what ``recovery`` has measured (``build/bench.json``), published figures for what grows
with the number of GPUs, and a failure rate; ``goodput_check`` compares it with a run on the testbed. Writes
``build/bench.json`` (``goodput.*``).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import random
from collections.abc import Iterator, Mapping
from pathlib import Path

from rich.table import Table

from tests.benchmarks import report

HOUR = 3600.0
MTTF_S = {1_024: 7.9 * HOUR, 16_384: 1.8 * HOUR, 131_072: 14 * 60.0}
"""Mean time to failure of a job by its GPUs (Kokolis et al., Revisiting Reliability, HPCA 2025)."""
KINDS = {"crash": 0.6, "hang": 0.2, "node": 0.2}
"""An assumption: what share of failures ends a process, stops it, or takes its node; see the table of sensitivity."""
NCCL_INIT_S = {1_024: 5.0, 16_384: 30.0, 131_072: 30.0 * 131_072 / 12_288}
"""MegaScale (NSDI 2024, 3.5): below 5 s at 2,048 GPUs, below 30 s above 10,000; from there in proportion."""
LOAD_S = 405e9 * 14 / 2e12
"""405 billion parameters, 14 bytes each, from storage that gives 2 TB/s (The Llama 3 Herd of Models, 3.3.1)."""
RENDEZVOUS_S = {1_024: 1.0, 16_384: 10.0, 131_072: 60.0}
"""An assumption; the same for both."""
LIMIT_MEASURED_S, LIMIT_OURS_S, LIMIT_STOCK_S = 5.0, 30.0, 180.0
"""Of a step: in the measurement, the floor of the learned one, and the feature document's flag."""
CRED_EXPIRE_MEASURED_S, CRED_EXPIRE_USUAL_S = 5.0, 120.0
STALL_S, DURABLE_S = {"ours": 0.58, "stock": 0.53}, {"ours": 28.4, "stock": 17.3}
"""Of an asynchronous save of 19 GB on an H200: how long it holds the training, and until it is safe (README)."""
WORK_S = 30 * 24 * HOUR
SEEDS = range(5)

Failures = Iterator[tuple[float, str]]
"""Seconds from one failure to the next, and its kind."""


@dataclasses.dataclass(frozen=True)
class Stack:
    """``recovery_s``: from a failure of each kind to the next step, without what is lost of the work before."""

    recovery_s: Mapping[str, float]
    stall_s: float
    durable_s: float


def simulate(work_s: float, failures: Failures, stack: Stack, interval_s: float) -> float:
    """Seconds that ``work_s`` of training take, checkpoints every ``interval_s`` of work.

    A failure goes back to the newest checkpoint that was safe by then; one during a recovery starts it again.
    """
    now = done = safe = 0.0
    saves: list[tuple[float, float]] = []
    gap, kind = next(failures)
    failure_at = gap
    while done < work_s:
        until = min(work_s, (saves[-1][1] if saves else safe) + interval_s)
        if failure_at < now + until - done:
            safe = max([safe, *(saved for safe_at, saved in saves if safe_at <= failure_at)])
            done, saves, now = safe, [], failure_at
            while True:
                ready = now + stack.recovery_s[kind]
                gap, kind = next(failures)
                failure_at += gap
                if failure_at >= ready:
                    break
                now = failure_at
            now = ready
        else:
            now, done = now + until - done, until
            if done < work_s:
                now += stack.stall_s
                saves = [*saves[-1:], (now + stack.durable_s, done)]
    return now


def drawn(mttf_s: float, seed: int) -> Failures:
    draw = random.Random(seed)
    while True:
        yield draw.expovariate(1 / mttf_s), draw.choices([*KINDS], [*KINDS.values()])[0]


def young_s(stall_s: float, mttf_s: float, at_least_s: float = 0.0) -> float:
    """The interval between checkpoints that loses least (Young, 1974); one at a time can be written."""
    return max(math.sqrt(2 * stall_s * mttf_s), at_least_s)


def goodput(stack: Stack, mttf_s: float) -> float:
    interval_s = young_s(stack.stall_s, mttf_s, stack.durable_s)
    took = [simulate(WORK_S, drawn(mttf_s, seed), stack, interval_s) for seed in SEEDS]
    return WORK_S * len(took) / sum(took)


def stack_at(gpus: int, name: str, measured: Mapping[str, float], *, at_scale: float = 1.0) -> Stack:
    """``at_scale``: times what grows with the number of GPUs."""
    larger = at_scale * (NCCL_INIT_S[gpus] + RENDEZVOUS_S[gpus] + LOAD_S)
    limit = (LIMIT_OURS_S if name == "ours" else LIMIT_STOCK_S) - LIMIT_MEASURED_S
    # With a spare node ft_launcher goes on in the allocation; the document's flags have none, so Slurm requeues.
    requeue = 0.0 if name == "ours" else CRED_EXPIRE_USUAL_S - CRED_EXPIRE_MEASURED_S
    recovery = {
        "crash": measured[f"kill.{name}_s"],
        "hang": measured[f"hang.{name}_s"] + limit,
        "node": measured[f"lost_node.{name}_s"] + requeue,
    }
    return Stack({kind: seconds + larger for kind, seconds in recovery.items()}, STALL_S[name], DURABLE_S[name])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("build/bench.json"))
    options = parser.parse_args()
    measured = json.loads(options.output.read_text())
    keys: dict[str, float] = {}
    table = Table("GPUs", "MTTF", "growing costs", "ours", "stock")
    for gpus, mttf_s in MTTF_S.items():
        for at_scale in (0.5, 1.0, 2.0):
            found = {
                name: goodput(stack_at(gpus, name, measured, at_scale=at_scale), mttf_s) for name in ("ours", "stock")
            }
            table.add_row(f"{gpus:,}", f"{mttf_s / HOUR:.2f} h", f"x {at_scale}", *(f"{x:.1%}" for x in found.values()))
            if at_scale == 1.0:
                keys.update({f"goodput.{name}_{gpus}": round(share, 4) for name, share in found.items()})
    report.console.print(table)
    report.save(options.output, {}, {}, keys)


if __name__ == "__main__":
    main()
