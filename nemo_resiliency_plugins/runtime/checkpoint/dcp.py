"""Writing and reading one checkpoint in torch.distributed.checkpoint's format (DCP), all ranks together."""

from __future__ import annotations

import re
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


def write(path: Path, content: Content, ranks: Ranks) -> list[Path]:
    """Collective. Returns the files that this rank has written, which are durable.

    Raises:
        CheckpointError: on all ranks, when one of them could not write.
    """
    with _reporting(path):
        save(
            {**content.tensors, HOST.format(rank=ranks.rank): content.host},
            storage_writer=FileSystemWriter(path),
            # Nothing is cached from one save to the next, since a state may get new keys.
            planner=DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
            process_group=ranks.group,
            no_dist=ranks.alone,
        )
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
    flat: dict[str, Any] = {**state.leave_out(content.tensors, known), entry: content.host}
    with _reporting(path):
        load(
            flat,
            storage_reader=SafeReader(path),
            planner=SafePlanner(),
            process_group=ranks.group,
            no_dist=ranks.alone,
        )
    host = flat.pop(entry)
    state.scatter(Content(flat, host))


def in_short(error: Exception) -> str:
    """Of torch's report, the line that names the error; what follows is general advice."""
    lines = str(error).splitlines()
    return next((line for line in lines if re.match(r"[\w.]*(Error|Exception): ", line)), lines[0])


@contextmanager
def _reporting(path: Path) -> Iterator[None]:
    """torch's CheckpointException is a BaseException, and holds what each rank met."""
    # A filter that stays: catch_warnings would change those of all threads, and put them back at the wrong time.
    warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
    try:
        yield
    except (CheckpointException, OSError) as error:
        raise CheckpointError(f"{path}: {error}") from error
