"""What one node holds of the local tier: the shards of its own ranks, and replicas of those of its partner."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

from nemo_resiliency_plugins.contract import fsync_directory, write_atomically
from nemo_resiliency_plugins.runtime.checkpoint import checksums

SaveId = tuple[int, int]
"""The step of a save, and a number that tells it apart from another one of the same step, which may have been cut."""


@dataclasses.dataclass(frozen=True)
class Shard:
    """The part of one rank in one local checkpoint."""

    step: int
    number: int
    rank: int
    world_size: int
    size: int
    crc32: int

    @property
    def save(self) -> SaveId:
        return self.step, self.number

    @property
    def as_tuple(self) -> tuple[int, ...]:
        return dataclasses.astuple(self)

    @property
    def sum(self) -> checksums.Sum:
        return {"size": self.size, "crc32": self.crc32}


class NodeStore:
    """Shards below ``root``, each with a header that is written when its data is durable.

    All ranks of a node may use the same directory at a time: each writes files of its own.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, shard: Shard) -> Path:
        return self._directory(shard.save) / f"rank{shard.rank:05d}.pt"

    def write(self, save: SaveId, rank: int, world_size: int, fill: Callable[[IO[bytes]], object]) -> Shard:
        """Raises OSError, and RuntimeError where torch writes."""
        path = self.path(Shard(*save, rank, world_size, size=0, crc32=0))
        path.parent.mkdir(parents=True, exist_ok=True)
        fsync_directory(self.root)
        with path.open("wb") as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        fsync_directory(path.parent)
        shard = Shard(*save, rank, world_size, **checksums.of_file(path))
        write_atomically(path.with_suffix(".json"), json.dumps(dataclasses.asdict(shard)) + "\n")
        return shard

    def shards(self) -> Iterator[Shard]:
        """Those with a readable header; their data may be damaged. A disk that cannot be read has none."""
        try:
            headers = sorted(self.root.glob("step_*/rank*.json"))
        except OSError:
            return
        for path in headers:
            try:
                yield Shard(**json.loads(path.read_text()))
            except (OSError, ValueError, TypeError):
                continue

    def problem(self, shard: Shard) -> str | None:
        """Why its data cannot be used, or None."""
        path = self.path(shard)
        return checksums.first_change(path.parent, {path.name: shard.sum})

    def directories(self) -> list[Path]:
        """Of all local checkpoints, whole or not. Raises OSError."""
        return list(self.root.glob("step_*"))

    def keep_only(self, save: SaveId, among: Iterable[Path]) -> None:
        """Remove the others ``among`` the directories that were there when the save began.

        A quicker rank of the node may have begun the next save by now.
        """
        for path in among:
            if path != self._directory(save):
                shutil.rmtree(path, ignore_errors=True)

    def discard(self, save: SaveId) -> None:
        shutil.rmtree(self._directory(save), ignore_errors=True)

    def _directory(self, save: SaveId) -> Path:
        return self.root / f"step_{save[0]:09d}-{save[1]:012x}"


def replica_keepers(nodes: Sequence[str]) -> list[int | None]:
    """For each rank the one that keeps a replica of its shard, on another node; None where there is only one node.

    Nodes are partners by twos, as in NVRx's clique replication with a factor of 2; of an odd number the last one
    gives its replicas to the first.

    Args:
        nodes: the node of each rank.
    """
    order = list(dict.fromkeys(nodes))
    ranks_of = {node: [rank for rank, its_node in enumerate(nodes) if its_node == node] for node in order}

    def keeper(rank: int, node: str) -> int | None:
        if len(order) == 1:
            return None
        partner = order.index(node) ^ 1
        peers = ranks_of[order[partner if partner < len(order) else 0]]
        return peers[ranks_of[node].index(rank) % len(peers)]

    return [keeper(rank, node) for rank, node in enumerate(nodes)]
