"""Jobs that meet one fault, and how long after it they train again: what the recovery benchmarks share.

Nothing here needs NeMo-Run, so that it also runs on a machine that has only torch and NVRx.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import yaml

from nemo_resiliency_plugins.compat import nvrx
from tests.benchmarks.measured import Measured
from tests.harness import ENABLED, LAUNCH, Job, program, spawn, wait_for

SCRIPT = str(Path(__file__).with_name("train.py"))
RANKS = 2
STEP_TIMEOUT_S = 5
RESTARTS = 3
DEADLINE_S = 240.0
PRESTART = ["torch", "numpy", "nvidia_resiliency_ext"]
STOCK_FLAGS = [
    f"--ft-rank_section_timeouts=setup:600,step:{STEP_TIMEOUT_S},checkpointing:420",
    "--ft-rank_out_of_section_timeout=300",
]
"""The feature document's own command line, with the same step timeout as ours."""
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Without it, ranks that torchrun (torch 2.13) restarts read the addresses of the previous start and rarely meet."""
FAULTS = ("kill", "exception", "hang")
SOON, LATER = 10, 60
"""Steps between a start and its fault. 12 s after the first step of ours the ranks of the next start wait."""
STEPS = 4 * LATER
"""For all faults and what follows the last."""
FAULT_SCRIPT = "NRP_FAULT_TOLERANCE__FAULT_SCRIPT"


def ours(root: Path) -> Job:
    """What FaultTolerancePlugin makes of the job on one node of a Slurm job; a test holds the two together."""
    settings = root / "monitor.yaml"
    settings.write_text(yaml.safe_dump(our_limits()))
    around = [sys.executable, "-m", "nemo_resiliency_plugins.runtime.launcher", f"--prestart={','.join(PRESTART)}"]
    env = {**our_variables(settings), FAULT_SCRIPT: each(FAULTS, LATER)}
    return launched(root, [*around, program("ft_launcher")], "--client=session", env)


def our_limits() -> dict[str, Any]:
    sections = {"setup": 1800, "step": STEP_TIMEOUT_S, "checkpointing": 420.0}
    return nvrx.monitor_settings(
        section_timeouts=sections, out_of_section_timeout=STEP_TIMEOUT_S, workload_check_interval=0.5
    )


def our_variables(settings: Path) -> dict[str, str]:
    times = nvrx.launcher_variables(monitor_interval=0.1, workers_stop_timeout=3.0, term_timeout=60.0)
    learning = {"NRP_FAULT_TOLERANCE__CALC_FT_TIMEOUTS": "true"}
    return {**times, **ENABLED, **learning, "PET_FT_CFG_PATH": str(settings)}


def stock(root: Path) -> Job:
    env = {**OWN_STORE, FAULT_SCRIPT: each(FAULTS, SOON)}
    return launched(root, [program("ft_launcher"), *STOCK_FLAGS], "--client=stock", env)


def torchrun(root: Path) -> Job:
    """A hang is nothing that it notices."""
    env = {**OWN_STORE, FAULT_SCRIPT: each(FAULTS[:2], SOON)}
    return launched(root, [program("torchrun")], "--client=session", env)


def each(kinds: Sequence[str], steps: int) -> str:
    """A fault of each kind, and as many ``steps`` before each."""
    return ",".join(f"{kind}@1:{(place + 1) * steps}" for place, kind in enumerate(kinds))


def launched(root: Path, launcher: list[str], client: str, env: Mapping[str, str]) -> Job:
    rendezvous = ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--nnodes=1", f"--nproc-per-node={RANKS}"]
    command = [*launcher, *rendezvous, f"--max-restarts={RESTARTS}"]
    script = [SCRIPT, "--root", str(root), "--steps", str(STEPS), client]
    return spawn(root, [*command, *LAUNCH, *script], {"GROUP_RANK": "0", **env})


def measure(job: Job, kinds: Sequence[str] = FAULTS) -> dict[str, Measured]:
    """Wait until every rank has done a step after the last of the faults, then end the job."""
    last = len(kinds)
    try:
        wait_for(
            lambda: all(steps_since(job, rank, last) for rank in range(RANKS)),
            deadline_s=DEADLINE_S,
            what="a step after the last fault",
        )
    finally:
        kill(job)
    return {kind: after_fault(job, cycle) for cycle, kind in enumerate(kinds)}


def after_fault(job: Job, cycle: int) -> Measured:
    """What followed the fault of this cycle."""
    [fault] = [event for event in job.events("fault_injected") if event["cycle"] == cycle]
    running = max(steps_since(job, rank, cycle + 1)[0].time for rank in range(RANKS))
    return Measured.between(fault["time"], running, job.events())


def kill(job: Job) -> None:
    """End a job that nobody needs any more, without its goodbye."""
    processes = [psutil.Process(job.process.pid), *psutil.Process(job.process.pid).children(recursive=True)]
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    job.process.wait()


def steps_since(job: Job, rank: int, cycle: int) -> list[Any]:
    return [line for line in job.steps(rank) if line.cycle >= cycle]


def cold_start(root: Path) -> float:
    """Seconds from the start of the rank processes to their first step, without any fault."""
    job = torchrun(root)
    try:
        wait_for(lambda: all(job.steps(rank) for rank in range(RANKS)), deadline_s=120, what="a first step")
        pids = [event["pid"] for event in job.events("rank_started")]
        started = min(psutil.Process(pid).create_time() for pid in pids)
    finally:
        kill(job)
    return max(job.steps(rank)[0].time for rank in range(RANKS)) - started
