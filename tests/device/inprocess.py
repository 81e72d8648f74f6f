"""In-process restart under NCCL: an exception, and a rank that hangs while the others wait in a collective.

Run on a machine with GPUs: ``python -m tests.device.inprocess``; one rank for each card, or ``--backend gloo --ranks
2`` without any. Prints a line of JSON for each fault; an exit code other than 0 means that a fault was not survived in
the same processes, or that the weights are not those of an undisturbed run.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from tests import lives
from tests.lives import Fault, Options
from tests.ranks import Group

FAULTS = {"undisturbed": None, "exception": "exception", "hang": "hang", "in_a_row": "exception"}
STEP, LIVES = 5, 4


def job(kind: str, ranks: int, backend: str) -> Options:
    fault, last = FAULTS[kind], ranks - 1
    count = LIVES - 1 if kind == "in_a_row" else 1
    faults = tuple(Fault(fault, last, STEP + life, life) for life in range(count)) if fault else ()
    return Options(faults=faults, every=1 if kind == "in_a_row" else 3, backend=backend)


def run(kind: str, ranks: int, backend: str, root: Path) -> Group:
    env = {} if backend == "nccl" else {"CUDA_VISIBLE_DEVICES": ""}
    with lives.started(root, ranks, job(kind, ranks, backend), body=on_own_card, env=env) as group:
        group.codes(150.0)
    return group


def on_own_card(options: Options) -> None:
    os.environ["LOCAL_RANK"] = os.environ["RANK"]
    lives.train_in_lives(options)


def told(kind: str, group: Group, expected: set[str]) -> dict[str, Any]:
    """What became of a job, with the seconds from each fault to the first new step of all ranks."""
    notes = [group.notes(rank) for rank in range(len(group.processes))]
    faults = [note.time for rank in notes for note in rank if note.what == "fault"]
    steps = [[note for note in rank if note.what == "step"] for rank in notes]
    back = [
        max(min(note.time for note in rank if note.time > fault and int(note.text) > life) for rank in steps) - fault
        for life, fault in enumerate(sorted(faults))
    ]
    processes = [{note.text.split(":")[0] for note in rank if note.what == "life"} for rank in notes]
    return {
        "fault": kind,
        "codes": [process.exitcode for process in group.processes],
        "lives": len([note for note in notes[0] if note.what == "life"]),
        "same_processes": all(len(each) == 1 for each in processes),
        "fault_to_step_s": [round(seconds, 2) for seconds in back],
        "equal": set(lives.results(group).values()) == expected and len(expected) == 1,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=["nccl", "gloo"], default="nccl")
    parser.add_argument("--ranks", type=int, default=torch.cuda.device_count())
    options = parser.parse_args()
    expected: set[str] = set()
    good = True
    with tempfile.TemporaryDirectory() as directory:
        for kind in FAULTS:
            group = run(kind, options.ranks, options.backend, Path(directory) / kind)
            expected = expected or set(lives.results(group).values())
            try:
                found = told(kind, group, expected)
                good = good and found["equal"] and found["same_processes"] and not any(found["codes"])
            except ValueError:  # a rank has done no further step
                found, good = {"fault": kind, "log": group.log[-4000:]}, False
            print(json.dumps({**found, "backend": options.backend, "ranks": options.ranks}), flush=True)
    sys.exit(not good)


if __name__ == "__main__":
    main()
