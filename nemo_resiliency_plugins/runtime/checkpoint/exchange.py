"""Bytes from rank to rank: replicas when a local checkpoint is written, shards when it is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from nemo_resiliency_plugins.runtime.agreement import Ranks


def give_and_take(
    path: Path, keepers: Sequence[int | None], sizes: Sequence[int], ranks: Ranks
) -> Mapping[int, torch.Tensor]:
    """Collective. Send the file to the keeper of this rank, and get those of which this rank is the keeper, by rank."""
    keeper = keepers[ranks.rank]
    mine = None if keeper is None else dist.isend(_mapped(path, sizes[ranks.rank]), keeper, group=ranks.group)
    taken = {rank: _received(sizes[rank], rank, ranks) for rank, its in enumerate(keepers) if its == ranks.rank}
    if mine is not None:
        mine.wait()
    return taken


def fetch(paths: Mapping[int, Path], holders: Sequence[int], sizes: Sequence[int], ranks: Ranks) -> torch.Tensor:
    """Collective. The bytes of this rank's shard, wherever they are.

    Args:
        paths: the files that this rank serves, by the rank that needs each.
        holders: for each rank, the one that serves its shard.
    """
    mine = torch.empty(0, dtype=torch.uint8)
    for rank, holder in enumerate(holders):
        if rank == holder == ranks.rank:
            mine = _mapped(paths[rank], sizes[rank])
        elif holder == ranks.rank:
            dist.send(_mapped(paths[rank], sizes[rank]), rank, group=ranks.group)
        elif rank == ranks.rank:
            mine = _received(sizes[rank], holder, ranks)
    return mine


def _mapped(path: Path, size: int) -> torch.Tensor:
    return torch.from_file(str(path), size=size, dtype=torch.uint8)


def _received(size: int, source: int, ranks: Ranks) -> torch.Tensor:
    content = torch.empty(size, dtype=torch.uint8)
    dist.recv(content, source, group=ranks.group)
    return content
