"""Ranks as processes that share one import of torch: a start takes a fraction of a second."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from nemo_resiliency_plugins.runtime.checkpoint.store import CheckpointStore
from tests.harness import FOREIGN, JOB_ID, Traces, wait_for

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "error")  # read when torch is loaded; in-process restart needs it
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.training", "tests.slowness", "tests.lives", "tests.results"])


@dataclasses.dataclass(frozen=True)
class Note:
    time: float
    what: str
    step: int
    text: str


@dataclasses.dataclass(frozen=True)
class Group(Traces):
    """The ranks of one start of a job in ``root``."""

    processes: list[BaseProcess]

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def store(self) -> CheckpointStore:
        return CheckpointStore(self.checkpoints, keep=99)

    @property
    def log(self) -> str:
        path = self.root / "log.txt"
        return path.read_text(errors="replace") if path.exists() else ""

    def notes(self, rank: int) -> list[Note]:
        """What the training has noted down, in all its starts."""
        path = self.root / f"notes-{rank}.txt"
        lines = path.read_text().splitlines() if path.exists() else []
        return [Note(float(at), what, int(step), text) for at, what, step, text in map(str.split, lines)]

    def resumed(self, rank: int = 0) -> list[tuple[int, str]]:
        """The step that each start went on from, and the digest of what it had then."""
        return [(note.step, note.text) for note in self.notes(rank) if note.what == "resumed"]

    def digests(self, rank: int = 0) -> dict[int, str]:
        """What a checkpoint of each step must hold on this rank."""
        return {note.step: note.text for note in self.notes(rank) if note.what == "step"}

    def durable(self, tiers: Sequence[str] = ("global",)) -> list[int]:
        """The steps of the saves to these tiers that were called durable."""
        return [event["step"] for event in self.events("checkpoint", rank=0) if event["tier"] in tiers]

    def codes(self, deadline_s: float = 60.0) -> list[int]:
        """The exit codes of all ranks, when all have ended."""
        wait_for(lambda: not any(process.is_alive() for process in self.processes), deadline_s=deadline_s)
        return [process.exitcode or 0 for process in self.processes]

    def succeed(self, deadline_s: float = 60.0) -> Group:
        codes = self.codes(deadline_s)
        assert not any(codes), f"exit codes {codes}:\n{self.log[-6000:]}"
        return self

    def kill(self) -> None:
        """SIGKILL to all ranks."""
        for process in self.processes:
            process.kill()
            process.join()


@contextmanager
def started(root: Path, world_size: int, body: Callable[..., None], *arguments: Any) -> Iterator[Group]:
    """Start ``body(*arguments)`` on ``world_size`` ranks; what is left of them is killed afterwards."""
    root.mkdir(parents=True, exist_ok=True)
    meeting = root / f"meeting-{time.time_ns()}"
    options = [(rank, world_size, root, meeting, body, arguments) for rank in range(world_size)]
    processes: list[BaseProcess] = [CONTEXT.Process(target=_rank, args=each) for each in options]
    group = Group(root, root / "nrp", processes)
    try:
        for process in processes:
            process.start()
        yield group
    finally:
        group.kill()


def run(root: Path, world_size: int, body: Callable[..., None], *arguments: Any, deadline_s: float = 60.0) -> Group:
    with started(root, world_size, body, *arguments) as group:
        return group.succeed(deadline_s)


def _rank(
    rank: int, world_size: int, root: Path, meeting: Path, body: Callable[..., None], arguments: tuple[Any, ...]
) -> None:
    import torch
    import torch.distributed as dist

    log = os.open(root / "log.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(log, stream.fileno())
    for name in [name for name in os.environ if name.startswith(FOREIGN)]:
        del os.environ[name]
    own = {"RANK": rank, "WORLD_SIZE": world_size, "NRP_DIR": root / "nrp", "NRP_JOB_ID": JOB_ID, "TEST_ROOT": root}
    os.environ.update({name: str(value) for name, value in own.items()})
    torch.set_num_threads(1)
    store = dist.FileStore(str(meeting), world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=30))
    body(*arguments)
    if dist.is_initialized():
        dist.destroy_process_group()
