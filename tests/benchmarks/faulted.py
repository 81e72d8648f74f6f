"""Jobs that meet one fault, and how long after it they train again: what the recovery benchmarks share.

Nothing here needs NeMo-Run, so that it also runs on a machine that has only torch and NVRx.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import yaml

from nemo_resiliency_plugins.compat import nvrx
from tests.harness import ENABLED, LAUNCH, Job, program, spawn, wait_for

SCRIPT = str(Path(__file__).with_name("train.py"))
RANKS = 2
STEP_TIMEOUT_S = 5
FAULT_STEP, STEPS = 10, 60
RESTARTS = 3
STOCK_FLAGS = [
    f"--ft-rank_section_timeouts=setup:600,step:{STEP_TIMEOUT_S},checkpointing:420",
    "--ft-rank_out_of_section_timeout=300",
]
"""The feature document's own command line, with the same step timeout as ours."""
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Without it, ranks that torchrun (torch 2.13) restarts read the addresses of the previous start and rarely meet."""
FAULT = {kind: f"{kind}@1:{FAULT_STEP}" for kind in ("kill", "hang", "exception")}
FAULT_SCRIPT = "NRP_FAULT_TOLERANCE__FAULT_SCRIPT"


@dataclasses.dataclass(frozen=True)
class Measured:
    """Seconds from the fault to the first new step on every rank, and where they went (ours)."""

    total_s: float
    parts: dict[str, float]


def ours(root: Path, fault: str) -> Job:
    """What FaultTolerancePlugin makes of the job on LocalExecutor; a test holds the two together."""
    settings = root / "monitor.yaml"
    settings.write_text(yaml.safe_dump(our_limits()))
    return launched(root, fault, ["ft_launcher"], "--client=session", our_variables(settings))


def our_limits() -> dict[str, Any]:
    sections = {"setup": 1800, "step": STEP_TIMEOUT_S, "checkpointing": 420.0}
    return nvrx.monitor_settings(
        section_timeouts=sections, out_of_section_timeout=STEP_TIMEOUT_S, workload_check_interval=0.5
    )


def our_variables(settings: Path) -> dict[str, str]:
    times = nvrx.launcher_variables(monitor_interval=0.1, workers_stop_timeout=3.0, term_timeout=60.0)
    learning = {"NRP_FAULT_TOLERANCE__CALC_FT_TIMEOUTS": "true"}
    return {**times, **ENABLED, **learning, "PET_FT_CFG_PATH": str(settings)}


def stock(root: Path, fault: str) -> Job:
    return launched(root, fault, ["ft_launcher", *STOCK_FLAGS], "--client=stock", OWN_STORE)


def torchrun(root: Path, fault: str) -> Job:
    return launched(root, fault, ["torchrun"], "--client=session", OWN_STORE)


def launched(root: Path, fault: str, launcher: list[str], client: str, env: Mapping[str, str]) -> Job:
    rendezvous = ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--nnodes=1", f"--nproc-per-node={RANKS}"]
    command = [program(launcher[0]), *launcher[1:], *rendezvous, f"--max-restarts={RESTARTS}"]
    script = [SCRIPT, "--root", str(root), "--steps", str(STEPS), client]
    return spawn(root, [*command, *LAUNCH, *script], {FAULT_SCRIPT: FAULT[fault], "GROUP_RANK": "0", **env})


def measure(job: Job) -> Measured:
    """Wait until every rank of the restarted job has done a step, then end the job."""
    try:
        wait_for(
            lambda: all(new_steps(job, rank) for rank in range(RANKS)), deadline_s=120, what="a step after the fault"
        )
    finally:
        kill(job)
    [fault] = job.events("fault_injected")
    total = max(new_steps(job, rank)[0].time for rank in range(RANKS)) - fault["time"]
    return Measured(total, breakdown(job, fault))


def kill(job: Job) -> None:
    """End a job that nobody needs any more, without its goodbye."""
    processes = [psutil.Process(job.process.pid), *psutil.Process(job.process.pid).children(recursive=True)]
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    job.process.wait()


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
    job = torchrun(root, "kill")
    try:
        wait_for(lambda: all(job.steps(rank) for rank in range(RANKS)), deadline_s=120, what="a first step")
        pids = [event["pid"] for event in job.events("rank_started")]
        started = min(psutil.Process(pid).create_time() for pid in pids)
    finally:
        kill(job)
    return max(job.steps(rank)[0].time for rank in range(RANKS)) - started
