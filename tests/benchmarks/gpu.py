"""What GPUs show that CPUs cannot: recovery, the vote, in-process restart, stragglers, checkpoints under NCCL.

Run on a machine with two GPUs: ``python -m tests.benchmarks.gpu``, in about seven minutes; ``--parts`` chooses, and
``--repeats`` says how often recovery is measured, at 155 s each. One GPU is enough for the overhead. Recovery is
measured under FaultTolerancePlugin's settings and under the feature document's flags in the same run; the other parts
are the scripts of ``tests.device`` and the benchmarks of the vote and, if asked for, of a step's overhead. Writes
``build/bench-gpu.json``; an exit code other than 0 means that something did not work, which is told at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.benchmarks import faulted, report
from tests.benchmarks.measured import Recoveries
from tests.harness import clean_env, program

RANKS = 2
GB = 1
DEADLINE_S = 240.0


class Findings:
    """What the parts have found, and what did not work."""

    def __init__(self, output: Path) -> None:
        self.output = output
        self.recoveries = Recoveries()
        self.found = self.recoveries.found
        self.told: dict[str, Any] = {}
        self.wrong: list[str] = []

    def run(self, name: str, module: str, *arguments: str, ranks: int = 0) -> None:
        """Note the lines of JSON that a module prints, run by torchrun where there are ``ranks``."""
        start = [program("torchrun"), "--standalone", f"--nproc-per-node={ranks}"] if ranks else [sys.executable]
        command = [*start, "-m", module, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        for line in lines:
            print(name, json.dumps(line), flush=True)
        if done.returncode:
            self.is_wrong(f"{name}: exit code {done.returncode}\n{(done.stdout + done.stderr)[-3000:]}")
        self.told[name] = lines

    def is_wrong(self, what: str) -> None:
        print(f"did not work: {what}", flush=True)
        self.wrong.append(what.splitlines()[0])

    def ratios(self) -> dict[str, float]:
        return {
            f"gpu.{fault}.stock_over_ours": statistics.median(stock) / statistics.median(ours)
            for fault in faulted.FAULTS
            if (ours := self.found.get(f"gpu.{fault}.ours_s")) and (stock := self.found.get(f"gpu.{fault}.stock_s"))
        }

    def save(self) -> None:
        report.save(self.output, self.found, self.recoveries.parts, {**self.ratios(), **self.told})


def recovery(findings: Findings, repeats: int) -> None:
    variants = {"ours": faulted.ours, "stock": faulted.stock}
    for name, start in variants.items():
        runs = report.repeat(name, repeats, lambda root, go=start: faulted.measure(go(root)))
        for fault in faulted.FAULTS:
            key = f"gpu.{fault}.{name}_s"
            findings.recoveries.add(key, [run[fault] for run in runs])
            print(key, findings.found[key], flush=True)
    findings.found["gpu.cold_start_s"] = report.repeat("gpu.cold_start_s", repeats, faulted.cold_start)


def vote(findings: Findings, repeats: int) -> None:
    findings.run("vote", "tests.benchmarks.preemption", "--repeats", "1", "--output", str(findings.output))


def overhead(findings: Findings, repeats: int) -> None:
    findings.run("overhead", "tests.benchmarks.overhead", "--repeats", "1", "--output", str(findings.output))


def in_process(findings: Findings, repeats: int) -> None:
    findings.run("in_process", "tests.device.inprocess", "--ranks", str(RANKS))


def stragglers(findings: Findings, repeats: int) -> None:
    with tempfile.TemporaryDirectory() as root:
        findings.run("stragglers", "tests.device.straggler", "--root", root, ranks=RANKS)


def checkpoints(findings: Findings, repeats: int) -> None:
    findings.run("checkpoints", "tests.device.ckpt_async", "--gb", str(GB), ranks=RANKS)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as root:
        same = ("tests.device.ckpt_move", "--gb", str(GB), "--root", root)
        findings.run("checkpoint_saved", *same, ranks=RANKS)
        findings.run("checkpoint_on_one", *same)


def validation(findings: Findings, repeats: int) -> None:
    findings.run("validation", "tests.device.rerun", ranks=RANKS)


Part = Callable[[Findings, int], None]
IN_ONE_CALL: dict[str, Part] = {
    "recovery": recovery,
    "vote": vote,
    "in_process": in_process,
    "stragglers": stragglers,
    "checkpoints": checkpoints,
}
PARTS: dict[str, Part] = {**IN_ONE_CALL, "overhead": overhead, "validation": validation}
ON_ONE_GPU = ("overhead",)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=1)
    several = torch.cuda.device_count() >= RANKS
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(IN_ONE_CALL if several else ON_ONE_GPU))
    parser.add_argument("--output", type=Path, default=Path("build/bench-gpu.json"))
    options = parser.parse_args()
    if not torch.cuda.is_available() or not (several or {*options.parts} <= {*ON_ONE_GPU}):
        parser.error(
            f"needs {RANKS} GPUs, or one for {' and '.join(ON_ONE_GPU)}; there are {torch.cuda.device_count()}"
        )
    os.environ.update(clean_env({}))
    findings = Findings(options.output)
    for name in options.parts:
        began = time.monotonic()
        try:
            PARTS[name](findings, options.repeats)
        except (AssertionError, TimeoutError, subprocess.TimeoutExpired) as error:
            findings.is_wrong(f"{name}: {error}")
        print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
        findings.save()
    report.show(findings.found, findings.recoveries.parts, findings.ratios())
    print("did not work:", *findings.wrong or ["nothing"], sep="\n")
    sys.exit(bool(findings.wrong))


if __name__ == "__main__":
    main()
