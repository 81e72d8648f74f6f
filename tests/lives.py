"""Ranks that train under in-process restart, with scripted faults; each is a process with a monitor of NVRx's."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from nemo_resiliency_plugins import runtime
from nemo_resiliency_plugins.compat import inprocess
from nemo_resiliency_plugins.config import InProcessRestartConfig
from nemo_resiliency_plugins.runtime.checkpoint import dcp
from nemo_resiliency_plugins.runtime.rendezvous import free_port
from tests import training
from tests.harness import FOREIGN, JOB_ID, wait_for
from tests.ranks import CONTEXT, Group

inprocess.names()  # loads NVRx once, for all ranks

SHORT = {
    "enabled": True,
    "granularity": "rank",
    "soft_timeout": 6.0,
    "hard_timeout": 10.0,
    "heartbeat_interval": 1.0,
    "heartbeat_timeout": 10.0,
    "barrier_timeout": 30.0,
    "completion_timeout": 30.0,
    "monitor_thread_interval": 0.1,
    "monitor_process_interval": 0.1,
    "progress_watchdog_interval": 0.1,
    "last_call_wait": 0.1,
    "termination_grace_time": 0.5,
}
"""Fields of InProcessRestartConfig."""


@dataclasses.dataclass(frozen=True)
class Fault:
    """``kind`` of fault on an active rank at a step of one life, or of every life."""

    kind: str
    rank: int
    step: int
    life: int | None = 0


@dataclasses.dataclass(frozen=True)
class Options:
    """What the training does."""

    steps: int = 10
    every: int = 3
    faults: tuple[Fault, ...] = ()
    checkpoint: dict[str, Any] = dataclasses.field(default_factory=dict)
    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    megabytes: int = 0
    write_s: float = 0.0
    """Seconds that each write of a checkpoint takes longer."""
    deaf: int | None = None
    """The step at which the writer of rank 1 no longer answers."""
    preemption: bool = False
    step_s: float = 0.0
    exit_at_end: bool = False
    backend: str = "gloo"


def life() -> int:
    """The number of this entry into the train function."""
    return int(os.environ["TORCHELASTIC_RESTART_COUNT"])


def train(options: Options) -> str:
    """One life; the digest of the final state."""
    with runtime.session(configs(options)) as session:
        dist.init_process_group(options.backend, timeout=timedelta(seconds=60))
        rank = dist.get_rank()
        training.note("life", life(), f"{os.getpid()}:{os.environ['MASTER_PORT']}:{resident_mb()}")
        torch.manual_seed(1)
        model = DistributedDataParallel(training.build(training.Options()).to(device_of(options)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        torch.manual_seed(100 + rank)
        ballast = torch.ones(options.megabytes << 20, dtype=torch.uint8)
        state = {"model": model, "optimizer": optimizer}
        start = session.attach(state, training.root() / "checkpoints", every=options.every)
        training.note("resumed", start, "-")
        session.settle(lambda: training.forward_backward(model, 0, rank))
        for step in session.steps(start, options.steps):
            strike(options, rank, step)
            time.sleep(options.step_s)
            optimizer.zero_grad()
            training.forward_backward(model, step, rank)
            optimizer.step()
            training.note("step", step, f"{life()}")
        del ballast
    if options.exit_at_end:
        sys.exit(0)
    return training.digest(model, optimizer)


def device_of(options: Options) -> torch.device:
    """NCCL: the card of this process, which keeps it when it gets another rank."""
    if options.backend != "nccl":
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    return device


def configs(options: Options) -> list[Any]:
    preemption = runtime.PreemptionConfig(exit_signal_handler=options.preemption)
    return [runtime.CheckpointConfig(**options.checkpoint), preemption]


def strike(options: Options, rank: int, step: int) -> None:
    for fault in options.faults:
        if (fault.rank, fault.step) == (rank, step) and fault.life in (None, life()):
            training.note("fault", step, fault.kind)
            STRIKES[fault.kind](step)


def raise_error(step: int) -> None:
    raise ValueError(f"bad batch at step {step}")


def run_out_of_memory(_: int) -> None:
    raise MemoryError("out of memory")


def hang_in_python(_: int) -> None:
    while True:
        time.sleep(0.05)


def hang_in_one_call(_: int) -> None:
    """A single call that lets other threads run."""
    time.sleep(3600)


def hang_with_the_lock(_: int) -> None:
    """A single call that holds the interpreter's lock."""
    ctypes.PyDLL(None).sleep(3600)


def kill(_: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leave(_: int) -> None:
    sys.exit(0)


def leave_with_a_code(_: int) -> None:
    sys.exit(17)


def kill_in_the_next_save(_: int) -> None:
    """When this rank has written a part of its file."""
    write = dcp.write

    def cut(path: Path, content: Any, ranks: Any) -> Any:
        (path / "__cut_0.distcp").write_text("half")
        kill(0)
        return write(path, content, ranks)

    dcp.write = cut


def hold_the_next_save(_: int) -> None:
    """Until the file ``release`` is there; ``held`` says that a save waits."""
    write = dcp.write

    def held(path: Path, content: Any, ranks: Any) -> Any:
        (training.root() / "held").touch()
        wait_for(lambda: (training.root() / "release").exists())
        return write(path, content, ranks)

    dcp.write = held


def announce_the_end(_: int) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


STRIKES: dict[str, Callable[[int], None]] = {
    "exception": raise_error,
    "memory": run_out_of_memory,
    "hang": hang_in_python,
    "blocked": hang_in_one_call,
    "locked": hang_with_the_lock,
    "kill": kill,
    "kill_saving": kill_in_the_next_save,
    "hold": hold_the_next_save,
    "exit": leave,
    "exit17": leave_with_a_code,
    "term": announce_the_end,
}


def resident_mb() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20


def train_in_lives(options: Options) -> None:
    """What each rank does."""
    first = os.environ["RANK"]
    training.inject(training.Options(write_s=options.write_s, deaf=options.deaf))
    wrapped = runtime.inprocess(train, InProcessRestartConfig(**{**SHORT, **options.config}))
    result = wrapped(options)
    (training.root() / f"result-{first}.txt").write_text(f"{result}")


@contextmanager
def started(
    root: Path,
    world_size: int,
    options: Options,
    body: Callable[[Options], None] = train_in_lives,
    env: Mapping[str, str] = {},
) -> Iterator[Group]:
    root.mkdir(parents=True, exist_ok=True)
    port = free_port()
    processes: list[BaseProcess] = [
        CONTEXT.Process(target=_rank, args=(rank, world_size, root, port, body, options, dict(env)))
        for rank in range(world_size)
    ]
    group = Group(root, root / "nrp", processes)
    try:
        for process in processes:
            process.start()
        yield group
    finally:
        group.kill()


def run(root: Path, world_size: int, options: Options, *, deadline_s: float = 90.0, **given: Any) -> Group:
    """All ranks end well."""
    with started(root, world_size, options, **given) as group:
        return group.succeed(deadline_s)


def results(group: Group) -> dict[int, str]:
    """By the rank that a process began with; ``None`` of a spare."""
    return {int(path.stem.split("-")[1]): path.read_text() for path in group.root.glob("result-*.txt")}


def _rank(
    rank: int,
    world_size: int,
    root: Path,
    port: int,
    body: Callable[[Options], None],
    options: Options,
    env: dict[str, str],
) -> None:
    log = os.open(root / "log.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(log, stream.fileno())
    for name in [name for name in os.environ if name.startswith(FOREIGN)]:
        del os.environ[name]
    own = {"RANK": rank, "WORLD_SIZE": world_size, "NRP_DIR": root / "nrp", "NRP_JOB_ID": JOB_ID, "TEST_ROOT": root}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in {**own, **meeting, **env}.items()})
    torch.set_num_threads(1)
    body(options)
