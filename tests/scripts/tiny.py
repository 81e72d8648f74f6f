"""The parts that the training scripts of the tests share."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from pathlib import Path

ROOT = Path(os.environ.get("TEST_ROOT", "."))
CYCLE = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
RANK = int(os.environ.get("RANK", "0"))
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "1"))
CHECKPOINTS = ROOT / "checkpoints"


def log_step(step: int) -> None:
    """Leave a line on disk that a SIGKILL cannot take back."""
    with (ROOT / f"steps-{RANK}.txt").open("a") as file:
        file.write(f"{time.time()} {step} {CYCLE}\n")


def say(text: str) -> None:
    """Leave a line in the one file of what this rank has lived through."""
    with (ROOT / f"said-{RANK}.txt").open("a") as file:
        file.write(f"{CYCLE} {text}\n")


def signal_once(at: int, step: int) -> None:
    """The last rank gets the signal that announces the end, in the first start that comes to this step."""
    if step == at and RANK == WORLD_SIZE - 1 and not (ROOT / "signalled").exists():
        (ROOT / "signalled").touch()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.5)  # the ranks agree meanwhile


def digest(tensors: dict[str, object]) -> str:
    """A hash over the bits of all tensors, by name."""
    total = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        total.update(name.encode() + value.detach().contiguous().numpy().tobytes())  # type: ignore[attr-defined]
    return total.hexdigest()
