"""Writing and reading one checkpoint in torch.distributed.checkpoint's format (DCP), all ranks together."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from nemo_resiliency_plugins.errors import CheckpointError
from nemo_resiliency_plugins.runtime.agreement import Ranks
from nemo_resiliency_plugins.runtime.checkpoint.safe_load import SafePlanner, SafeReader
from nemo_resiliency_plugins.runtime.checkpoint.state import Content, TrainingState

HOST = "host.rank{rank:05d}"
"""The entry that holds everything of one rank that is not a tensor of a module or an optimizer."""

MOST_RANKS = 3
"""So many ranks are named in an error; the others will have met the same."""


def write(path: Path, content: Content, ranks: Ranks) -> list[Path]:
    """Collective. Returns the files that this rank has written, which are durable.

    Raises:
        CheckpointError: on all ranks, when one of them could not write.
    """
    with reporting(path):
        save(
            flat(content, ranks),
            storage_writer=FileSystemWriter(path),
            planner=planner(),
            process_group=ranks.group,
        )
    return files_of(path, ranks)


def flat(content: Content, ranks: Ranks) -> dict[str, Any]:
    """The state dict that stands for ``content``."""
    return {**content.tensors, HOST.format(rank=ranks.rank): content.host}


def planner() -> DefaultSavePlanner:
    """For a state dict that is flat already. It caches nothing from save to save, since a state may get new keys."""
    return DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)


def files_of(path: Path, ranks: Ranks) -> list[Path]:
    """What this rank has written."""
    metadata = [path / ".metadata"] if ranks.rank == 0 else []
    return [*sorted(path.glob(f"__{ranks.rank}_*")), *metadata]


def read(path: Path, state: TrainingState, ranks: Ranks, *, saved_by: int) -> None:
    """Collective. Fill ``state`` from what ``saved_by`` ranks have written.

    Raises:
        CheckpointError: on the ranks that could not read it.
    """
    content = state.gather()
    entry = HOST.format(rank=ranks.rank % saved_by)
    known = SafeReader(path).read_metadata().state_dict_metadata
    found: dict[str, Any] = {**state.leave_out(content.tensors, known), entry: content.host}
    with reporting(path):
        load(
            found,
            storage_reader=SafeReader(path),
            planner=SafePlanner(),
            process_group=ranks.group,
        )
    host = found.pop(entry)
    state.scatter(Content(found, host))


@contextmanager
def reporting(path: Path) -> Iterator[None]:
    """torch's CheckpointException is a BaseException, and holds what each rank met, with its traceback."""
    # Without a process group torch finds out by itself, and warns; that it can be told (no_dist) is new in 2.7.
    # A filter that stays: catch_warnings would change those of all threads, and put them back at the wrong time.
    warnings.filterwarnings("ignore", "torch.distributed is (disabled|unavailable)", UserWarning)
    try:
        yield
    except CheckpointException as error:
        met = [f"rank {rank}: {_in_short(cause)}" for rank, (cause, _) in error.failures.items()]
        raise CheckpointError(f"{path}: {'; '.join(met[:MOST_RANKS])}") from error
    except OSError as error:
        raise CheckpointError(f"{path}: {_in_short(error)}") from error


def _in_short(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
