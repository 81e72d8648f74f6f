"""How long after a fault the training runs again in its processes, with the script and the faults of ``recovery``.

Ranks that this benchmark starts itself, some of them spares, meet one fault after another. Writes ``build/bench.json``
under ``inprocess.``.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nemo_resiliency_plugins.contract import variable
from nemo_resiliency_plugins.runtime.rendezvous import free_port
from tests.benchmarks import faulted
from tests.benchmarks.report import repeat, save, show
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
MOMENTS = [("others noticed", "life_ended", 0), ("rank given up", "ranks_lost", 0), ("met again", "life_began", 1)]
MOMENTS += [("setup and load", "resumed", 1), ("first step", "first_step", 1)]
"""Each with its event and how many lives after that of the fault it is."""


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


def measure(started: Started) -> dict[str, faulted.Measured]:
    """Seconds from each fault to the first new step on every active rank."""
    try:
        wait_for(
            lambda: all(faulted.steps_since(started, rank, len(FAULTS)) for rank in range(RANKS)),
            deadline_s=120,
            what="a step after the last fault",
        )
    finally:
        started.end()
    return {kind: after_fault(started, life) for life, kind in enumerate(FAULTS)}


def after_fault(started: Started, life: int) -> faulted.Measured:
    [fault] = [event for event in started.events("fault_injected") if life_of(event) == life]
    after = [faulted.steps_since(started, rank, life + 1)[0].time for rank in range(RANKS)]
    return faulted.Measured(max(after) - fault["time"], dict(parts_of(started, life, fault["time"])))


def parts_of(started: Traces, life: int, previous: float) -> Iterator[tuple[str, float]]:
    """Seconds from one moment to the next; of events of several ranks the last counts."""
    for label, name, later in MOMENTS:
        times = [event["time"] for event in started.events(name) if life_of(event) == life + later]
        moment = max([*times, previous])
        yield label, moment - previous
        previous = moment


def life_of(event: dict[str, Any]) -> int:
    return int(event.get("iteration", event["cycle"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path("build/bench.json"))
    options = parser.parse_args()
    os.environ.update(clean_env({}))
    runs = repeat("inprocess", options.repeats, lambda root: measure(in_process(root)))
    found: dict[str, list[float]] = {}
    parts: dict[str, dict[str, float]] = {}
    for fault in FAULTS:
        key, times = f"inprocess.{fault}.fault_to_step_s", [run[fault] for run in runs]
        found[key] = [each.total_s for each in times]
        parts[key] = {part: statistics.median(each.parts[part] for each in times) for part in times[0].parts}
    show(found, parts, {})
    save(options.output, found, parts, {})


if __name__ == "__main__":
    main()
