"""How long after a fault the training runs again: ours, the stock flags, torchrun, and the floor of a cold start.

All variants run the same script on this machine in the same run. Writes ``build/bench.json``.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nemo_run as run
import psutil

from nemo_resiliency_plugins import FaultTolerancePlugin
from tests.benchmarks.report import medians, repeat, save, show
from tests.harness import BIN, LAUNCH, Job, clean_env, spawn, wait_for
from tests.submission import submission

SCRIPT = str(Path(__file__).with_name("train.py"))
RANKS = 2
STEP_TIMEOUT_S = 5
FAULT_STEP, STEPS = 10, 60
STOCK_FLAGS = [
    f"--ft-rank_section_timeouts=setup:600,step:{STEP_TIMEOUT_S},checkpointing:420",
    "--ft-rank_out_of_section_timeout=300",
]
"""The feature document's own command line, with the same step timeout as ours."""
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Without it, ranks that torchrun (torch 2.13) restarts read the addresses of the previous start and rarely meet."""
FAULT = {"kill": f"kill@1:{FAULT_STEP}", "hang": f"hang@1:{FAULT_STEP}"}


@dataclasses.dataclass(frozen=True)
class Measured:
    """Seconds from the fault to the first new step on every rank, and where they went (ours)."""

    total_s: float
    parts: dict[str, float]


def ours(root: Path, fault: str) -> Job:
    plugin = FaultTolerancePlugin(rank_heartbeat_timeout=STEP_TIMEOUT_S, fault_script=FAULT[fault])
    task = run.Script(SCRIPT, entrypoint="python", args=["--root", str(root), "--steps", str(STEPS)])
    executor = run.LocalExecutor(ntasks_per_node=RANKS, env_vars={"NRP_DIR": str(root / "nrp")})
    started = submission(task, executor, [plugin], root)
    return spawn(root, [str(BIN / started.command[0]), *started.command[1:]], started.env)


def stock(root: Path, fault: str) -> Job:
    return launched(root, fault, ["ft_launcher", *STOCK_FLAGS], "--client=stock")


def torchrun(root: Path, fault: str) -> Job:
    return launched(root, fault, ["torchrun"], "--client=session")


def launched(root: Path, fault: str, launcher: list[str], client: str) -> Job:
    rendezvous = ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--nnodes=1", f"--nproc-per-node={RANKS}"]
    command = [str(BIN / launcher[0]), *launcher[1:], *rendezvous, "--max-restarts=3"]
    script = [SCRIPT, "--root", str(root), "--steps", str(STEPS), client]
    env = {"NRP_FAULT_TOLERANCE__FAULT_SCRIPT": FAULT[fault], "GROUP_RANK": "0", **OWN_STORE}
    return spawn(root, [*command, *LAUNCH, *script], env)


def measure(job: Job) -> Measured:
    """Wait until every rank of the restarted job has done a step, then end the job."""
    try:
        wait_for(
            lambda: all(new_steps(job, rank) for rank in range(RANKS)), deadline_s=120, what="a step after the fault"
        )
    finally:
        job.end()
    [fault] = job.events("fault_injected")
    total = max(new_steps(job, rank)[0].time for rank in range(RANKS)) - fault["time"]
    return Measured(total, breakdown(job, fault))


def new_steps(job: Job, rank: int) -> list[Any]:
    return [line for line in job.steps(rank) if line.cycle > 0]


def breakdown(job: Job, fault: dict[str, Any]) -> dict[str, float]:
    """Seconds from one moment to the next; of events of several ranks the last counts."""
    moments = [("noticed", "rank_ended", 0), ("process started", "rank_started", 1), ("imports", "session_started", 1)]
    moments += [("setup and load", "resumed", 1), ("first step", "first_step", 1)]
    parts, previous = {}, fault["time"]
    for label, name, cycle in moments:
        times = [event["time"] for event in job.events(name) if event["cycle"] == cycle]
        parts[label] = max(times, default=previous) - previous
        previous += parts[label]
    return parts


def cold_start(root: Path) -> float:
    """Seconds from the start of the rank processes to their first step, without any fault."""
    job = launched(root, "kill", ["torchrun"], "--client=session")
    try:
        wait_for(lambda: all(job.steps(rank) for rank in range(RANKS)), deadline_s=120, what="a first step")
        pids = [event["pid"] for event in job.events("rank_started")]
        started = min(psutil.Process(pid).create_time() for pid in pids)
    finally:
        job.end()
    return max(job.steps(rank)[0].time for rank in range(RANKS)) - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path("build/bench.json"))
    options = parser.parse_args()
    os.environ.update(clean_env({}))
    plan: dict[str, tuple[Callable[[Path, str], Job], str]] = {
        "hang.ours_s": (ours, "hang"),
        "hang.stock_s": (stock, "hang"),
        "kill.ours_s": (ours, "kill"),
        "kill.stock_s": (stock, "kill"),
        "kill.torchrun_s": (torchrun, "kill"),
    }
    found: dict[str, list[float]] = {}
    parts: dict[str, dict[str, float]] = {}
    for key, (variant, fault) in plan.items():
        # A stock hang takes over 40 s: three of them are enough.
        times = min(3, options.repeats) if key == "hang.stock_s" else options.repeats
        runs = repeat(key, times, lambda root, start=variant, kind=fault: measure(start(root, kind)))
        found[key] = [each.total_s for each in runs]
        if variant is ours:
            parts[key] = {name: statistics.median(each.parts[name] for each in runs) for name in runs[0].parts}
    found["kill.cold_start_s"] = repeat("kill.cold_start_s", options.repeats, cold_start)
    typical = medians(found)
    ratios = {
        "hang.stock_over_ours": typical["hang.stock_s"] / typical["hang.ours_s"],
        "kill.ours_over_cold_start": typical["kill.ours_s"] / typical["kill.cold_start_s"],
    }
    show(found, parts, ratios)
    save(options.output, found, parts, ratios)


if __name__ == "__main__":
    main()
