"""A small training on each rank, with faults in its saves: what the tests of checkpoints run."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import torch
import torch._dynamo  # the first optimizer would import it, in each rank anew
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from nemo_resiliency_plugins import runtime
from nemo_resiliency_plugins.contract import ENV_DIR, read_events, variable
from nemo_resiliency_plugins.runtime.agreement import Ranks
from nemo_resiliency_plugins.runtime.checkpoint import dcp
from nemo_resiliency_plugins.runtime.checkpoint.node_store import NodeStore, SaveId, Shard
from nemo_resiliency_plugins.runtime.checkpoint.state import Content, TrainingState
from tests.harness import wait_for

Fill = Callable[[IO[bytes]], object]


@dataclasses.dataclass(frozen=True)
class Options:
    """What a training does; ``checkpoint`` holds fields of CheckpointConfig."""

    steps: int = 10
    every: int = 2
    keep: int = 2
    step_s: float = 0.0
    sharded: bool = False
    width: int = 32
    checkpoint: dict[str, Any] = dataclasses.field(default_factory=dict)
    write_s: float = 0.0
    """Seconds that each write takes longer."""
    failing: tuple[int, ...] = ()
    """Steps at which the write fails, on ``bad_rank`` alone."""
    bad_rank: int = 1
    slow_removal_s: float = 0.0
    """Seconds that ``bad_rank`` takes before it removes what the local tier no longer needs."""
    deaf: int | None = None
    """The step at which the writer of ``bad_rank`` no longer answers."""
    dying: int | None = None
    """The step at which the writer of ``bad_rank`` ends with an error that is none of a save."""
    handler: str = "none"
    """What takes SIGTERM: the session's handler (``ours``), one of the script that exits with 143 (``own``), none."""
    notice_at: int | None = None
    """The step in which rank 0 is told that its time is up; all know of it when the step ends."""
    end: str = "normal"
    """How the session is left: ``normal``, ``exception`` or ``exit``, or after ``rank 0`` alone has ended it."""
    early: bool = False
    """Leave in the step after the last checkpoint, in the middle of the loop."""
    stop_at: int | None = None
    """Begin this step and do no more."""
    extra_from: int | None = None
    """From this step on the state has one more object with tensors of its own."""
    local: str | None = None
    """The directory of the local tier, with ``{node}`` in it."""
    ranks_per_node: int = 2


class Extra:
    """An object whose state gets another key."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {"count": 0}

    def state_dict(self) -> dict[str, Any]:
        return dict(self.values)

    def load_state_dict(self, values: dict[str, Any]) -> None:
        self.values = dict(values)


def build(options: Options) -> nn.Module:
    torch.manual_seed(1)
    layers = [nn.Linear(16, options.width), nn.Tanh(), nn.Dropout(0.1), nn.Linear(options.width, 4)]
    model = nn.Sequential(*layers)
    if options.sharded:
        fully_shard(model)
    return model


def train(options: Options, look: Callable[[str, int, nn.Module], None] = lambda what, step, model: None) -> None:
    """Run the training; each step leaves a line with the digest of what a checkpoint after it must hold."""
    rank = dist.get_rank()
    for name, value in options.checkpoint.items():
        os.environ[variable("checkpoint", name)] = str(value)
    if options.local is not None:
        node = rank // options.ranks_per_node
        os.environ["SLURMD_NODENAME"] = f"node{node}"
        os.environ[variable("checkpoint", "non_persistent_local_ckpt_dir")] = options.local.format(node=node)
    inject(options)
    handle(options.handler)
    with runtime.session() as session:
        model = build(options)
        wrapped = model if options.sharded else DistributedDataParallel(model)
        optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-2)
        torch.manual_seed(100 + rank)
        extra = Extra()
        state = {"model": wrapped, "optimizer": optimizer, "extra": extra}
        start = session.attach(state, root() / "checkpoints", every=options.every, keep=options.keep)
        note("resumed", start, digest(model, optimizer))
        look("from", start, model)
        note("extra", start, ",".join(sorted(extra.values)))
        session.settle(lambda: forward_backward(wrapped, 0, rank))
        for step in session.steps(start, options.steps):
            before(step, options)
            optimizer.zero_grad()
            forward_backward(wrapped, step, rank)
            optimizer.step()
            extra.values["count"] = step + 1
            if options.extra_from is not None and step + 1 >= options.extra_from:
                extra.values["more"] = {"tensor": torch.full((3,), float(step)), "text": f"{step}"}
            note("step", step + 1, digest(model, optimizer))
            if options.early and step == options.every:
                leave(options.end)
        look("to", session._loop.completed, model)
        note("left", session._loop.completed, digest(model, optimizer))
        if options.end == "rank 0" and rank == 0:
            session.save()
            session.finish()
        leave(options.end)


def handle(handler: str) -> None:
    if handler == "own":
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    os.environ[variable("preemption", "exit_signal_handler")] = str(handler == "ours").lower()


def before(step: int, options: Options) -> None:
    """What a step does and meets before its forward pass."""
    time.sleep(options.step_s)
    if step == options.stop_at:
        note("stopped", step, "-")
        time.sleep(3600)
    if step == options.notice_at:
        be_told()


def be_told() -> None:
    """Return when all ranks know of the one signal that rank 0 gets."""
    if dist.get_rank() == 0:
        os.kill(os.getpid(), signal.SIGTERM)
    directory, ranks = Path(os.environ[ENV_DIR]), dist.get_world_size()
    wait_for(lambda: [event["event"] for event in read_events(directory)].count("preemption_notice") == ranks)


def leave(how: str) -> None:
    if how == "exception":
        raise ValueError("on the way")
    if how == "exit":
        sys.exit(0)


def forward_backward(model: nn.Module, step: int, rank: int) -> None:
    draw = torch.Generator().manual_seed(step * 1009 + rank)
    batch = torch.randn(8, 16, generator=draw).to(next(model.parameters()).device)
    model(batch).square().mean().backward()


def inject(options: Options) -> None:
    """Slow down, fail, silence or end the writes of this process."""
    inject_globally(options)
    inject_locally(options)


def inject_globally(options: Options) -> None:
    write = dcp.write

    def faulty(path: Path, content: Content, ranks: Ranks) -> list[Path]:
        step, is_bad = int(path.name.rpartition("_")[2]), ranks.rank == options.bad_rank
        time.sleep(options.write_s)
        if is_bad and step == options.deaf:
            time.sleep(3600)
        if is_bad and step == options.dying:
            raise AssertionError("a bug")
        if is_bad and step in options.failing:
            block(path / f"__{ranks.rank}_0.distcp")
        return write(path, content, ranks)

    dcp.write = faulty


def inject_locally(options: Options) -> None:
    def slow_write(store: NodeStore, save: SaveId, rank: int, world_size: int, fill: Fill) -> Shard:
        def fill_slowly(file: IO[bytes]) -> None:
            fill(file)
            time.sleep(options.write_s)

        if rank == options.bad_rank and save[0] in options.failing:
            block(store.path(Shard(*save, rank, world_size, size=0, crc32=0)))
        return write(store, save, rank, world_size, fill_slowly)

    def slow_removal(store: NodeStore, *arguments: Any) -> None:
        time.sleep(options.slow_removal_s if dist.get_rank() == options.bad_rank else 0.0)
        remove(store, *arguments)

    write, remove = NodeStore.write, NodeStore.keep_only
    NodeStore.write = slow_write  # type: ignore[method-assign]
    NodeStore.keep_only = slow_removal  # type: ignore[method-assign]


def block(path: Path) -> None:
    """Let it be a file that cannot be opened for writing: a directory."""
    path.mkdir(parents=True, exist_ok=True)


def digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """A hash over what this rank holds of the parameters and the optimizer's state."""
    total = hashlib.sha256()
    for parameter in model.parameters():
        states = [value for _, value in sorted(optimizer.state.get(parameter, {}).items()) if torch.is_tensor(value)]
        for value in (parameter, *states):
            local = value.to_local() if isinstance(value, DTensor) else value
            total.update(local.detach().contiguous().cpu().numpy().tobytes())
    return total.hexdigest()[:16]


def whole_digest(options: Options) -> None:
    """Train, and note the digest of the whole parameters before and after; each rank takes part in the gathering."""

    def gathered(what: str, step: int, model: nn.Module) -> None:
        parts = [value.full_tensor() if isinstance(value, DTensor) else value for value in model.parameters()]
        total = hashlib.sha256(b"".join(value.detach().numpy().tobytes() for value in parts))
        note(what, step, total.hexdigest()[:16])

    train(options, gathered)


def digest_of_checkpoint(path: Path, width: int = 32) -> str:
    """The digest of what a checkpoint of a model that is not sharded holds; needs no process group."""
    model = build(Options(width=width))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    dcp.read(path, TrainingState({"model": model, "optimizer": optimizer, "extra": Extra()}), Ranks(), saved_by=1)
    return digest(model, optimizer)


def root() -> Path:
    return Path(os.environ["TEST_ROOT"])


def note(what: str, step: int, text: str) -> None:
    """Leave a line on disk that a SIGKILL cannot take back."""
    with (root() / f"notes-{dist.get_rank()}.txt").open("a") as file:
        file.write(f"{time.time()} {what} {step} {text}\n")
