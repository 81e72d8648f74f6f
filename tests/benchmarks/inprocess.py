"""How long after a fault the training runs again in its processes, with the script and the faults of ``recovery``.

Ranks that this benchmark starts itself, some of them spares, meet one fault after another. Writes ``build/bench.json``
under ``inprocess.``.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

from nemo_resiliency_plugins.contract import variable
from nemo_resiliency_plugins.runtime.rendezvous import free_port
from tests.benchmarks import faulted
from tests.benchmarks.measured import Measured, Moment, Recoveries
from tests.benchmarks.report import arguments, repeat, save, show
from tests.harness import JOB_ID, LAUNCH, Traces, clean_env, wait_for

FAULTS = ("exception", "kill", "hang")
RANKS, SPARES = faulted.RANKS, 2
"""The last two faults take a rank each."""
FIELDS = {
    "enabled": "true",
    "granularity": "rank",
    "active_world_size": str(RANKS),
    "soft_timeout": str(faulted.STEP_TIMEOUT_S),
    "hard_timeout": str(2 * faulted.STEP_TIMEOUT_S),
    "heartbeat_interval": "1",
    "heartbeat_timeout": "15",
    "barrier_timeout": "60",
    "monitor_thread_interval": "0.25",
    "monitor_process_interval": "0.25",
    "progress_watchdog_interval": "0.25",
    "last_call_wait": "0.25",
}
"""A limit as long as that of the other variants; NVRx's defaults for the intervals are 1 s each."""
MOMENTS = (
    Moment("others noticed", "life_ended"),
    Moment("rank given up", "ranks_lost"),
    Moment("met again", "life_began"),
    Moment("set-up", "load_began"),
    Moment("load", "resumed"),
    Moment("first step", "first_step"),
)


@dataclasses.dataclass(frozen=True)
class Started(Traces):
    """Ranks under in-process restart, in one session of processes each."""

    processes: list[subprocess.Popen[bytes]]

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def in_process(root: Path) -> Started:
    """As srun would start them: each rank by itself."""
    port = str(free_port())
    common = {variable("inprocess", name): value for name, value in FIELDS.items()}
    common |= {"NRP_DIR": str(root / "nrp"), "NRP_JOB_ID": JOB_ID, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    common |= {"WORLD_SIZE": str(RANKS + SPARES), "TORCH_CPP_LOG_LEVEL": "error"}
    common[faulted.FAULT_SCRIPT] = faulted.each(FAULTS, faulted.SOON)
    command = [sys.executable, *LAUNCH, faulted.SCRIPT, "--root", str(root), "--steps", str(faulted.STEPS)]
    with (root / "log.txt").open("ab") as log:
        processes = [
            subprocess.Popen(
                [*command, "--in-process"], env=clean_env({**common, "RANK": str(rank)}), stdout=log, stderr=log
            )
            for rank in range(RANKS + SPARES)
        ]
    return Started(root, root / "nrp", processes)


def measure(started: Started) -> dict[str, Measured]:
    """From each fault to the first new step on every active rank."""
    try:
        wait_for(
            lambda: all(faulted.steps_since(started, rank, len(FAULTS)) for rank in range(RANKS)),
            deadline_s=120,
            what="a step after the last fault",
        )
    finally:
        started.end()
    return {kind: after_fault(started, life) for life, kind in enumerate(FAULTS)}


def after_fault(started: Started, life: int) -> Measured:
    [fault] = [event for event in started.events("fault_injected") if life_of(event) == life]
    running = max(faulted.steps_since(started, rank, life + 1)[0].time for rank in range(RANKS))
    return Measured.between(fault["time"], running, started.events(), MOMENTS)


def life_of(event: dict[str, Any]) -> int:
    return int(event.get("iteration", event["cycle"]))


def main() -> None:
    options = arguments(__doc__)
    runs = repeat("inprocess", options.repeats, lambda root: measure(in_process(root)))
    recoveries = Recoveries()
    for fault in FAULTS:
        recoveries.add(f"inprocess.{fault}.fault_to_step_s", [run[fault] for run in runs])
    show(recoveries.found, recoveries.parts, {})
    save(options.output, recoveries.found, recoveries.parts, {})


if __name__ == "__main__":
    main()
