"""The local tier: each rank's part on its node's own disk, with a replica on a partner node, one checkpoint at a time.

The ranks exchange bytes over gloo, with GPUs too. NVRx's local manager (0.4.1 to 0.7.0) loads its files with
``weights_only=False``, which runs what code they hold, and checks no sums; without a GPU neither it nor its clique
replication works.
"""

from __future__ import annotations

import io
import pickle
import secrets
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from nemo_resiliency_plugins.errors import CheckpointError
from nemo_resiliency_plugins.runtime.agreement import Ranks
from nemo_resiliency_plugins.runtime.checkpoint import checksums, exchange, loadable
from nemo_resiliency_plugins.runtime.checkpoint.node_store import NodeStore, SaveId, Shard, replica_keepers
from nemo_resiliency_plugins.runtime.checkpoint.state import Content, TrainingState
from nemo_resiliency_plugins.runtime.log import line, logger


class LocalTier:
    """Every method is a collective over the ranks that it is given, and errors come to all of them alike.

    Args:
        root: a directory on this node's disk, which belongs to this training alone.
        node: a name that the ranks of this node share.
        parallel: of the tensors that all ranks hold alike, each writes a part.
    """

    def __init__(self, root: Path, node: str, ranks: Ranks, *, parallel: bool) -> None:
        self._store = NodeStore(root)
        self._parallel = parallel
        self._keepers = replica_keepers(ranks.gather(node))
        self._damaged: set[SaveId] = set()

    def save(self, step: int, content: Content, ranks: Ranks) -> bool:
        """Write, replicate, and only then remove the one before. Raises CheckpointError."""
        save = step, ranks.decide(lambda: secrets.randbits(48)) or 0
        try:
            ranks.each(lambda: loadable.require(content.host))
            mine, before = ranks.each(lambda: self._write(save, content, ranks))
            self._replicate(mine, ranks)
        except CheckpointError:
            self._store.discard(save)
            raise
        self._store.keep_only(save, before)
        return True

    def newest(self, ranks: Ranks, *, newer_than: int) -> Found | None:
        """The newest save of which every shard is whole somewhere."""
        gathered = ranks.gather([shard.as_tuple for shard in self._store.shards()])
        found: dict[SaveId, Found] = {}
        for holder, part in enumerate(gathered):
            for shard in (Shard(*fields) for fields in part):
                if shard.world_size == ranks.world_size:
                    found.setdefault(shard.save, Found(shard.save)).add(holder, shard)
        for save in sorted(found, reverse=True):
            if save[0] > newer_than and save not in self._damaged and self._is_whole(found[save], ranks):
                return found[save]
        return None

    def load(
        self, found: Found, state: TrainingState, ranks: Ranks, problem_of: Callable[[], str | None] = lambda: None
    ) -> bool:
        """Fill ``state``; False, and never again this save, if a rank could not, or has a ``problem_of()`` it then."""
        try:
            data = self._fetch(found, ranks)
            saved = ranks.each(lambda: _parse(data))
            content = state.gather()
            content = Content(state.leave_out(content.tensors, saved["forms"]), saved["host"])
            ranks.each(lambda: _check_forms(content.tensors, saved["forms"]))
            for name, tensor in sorted(content.tensors.items()):
                _fill(_local(tensor), saved["tensors"].get(name), saved["owners"].get(name), ranks)
            ranks.each(lambda: state.scatter(content))
            if problem := ranks.first_problem(problem_of()):
                raise CheckpointError(problem)
        except CheckpointError as error:
            self._damaged.add(found.save)
            self._skip(found.save, str(error), ranks)
            return False
        return True

    def _write(self, save: SaveId, content: Content, ranks: Ranks) -> tuple[Shard, list[Path]]:
        """Returns also the directories that were there before."""
        owners = _owners(content.tensors, ranks) if self._parallel else {}
        mine = {name for name in content.tensors if owners.get(name, ranks.rank) == ranks.rank}
        whole = {
            "tensors": {name: _local(content.tensors[name]).cpu() for name in mine},
            "host": content.host,
            "forms": {name: _form(tensor) for name, tensor in content.tensors.items()},
            "owners": owners,
        }
        before = self._store.directories()
        return self._store.write(save, ranks.rank, ranks.world_size, lambda file: torch.save(whole, file)), before

    def _replicate(self, mine: Shard, ranks: Ranks) -> None:
        """A replica is what its original was summed up to be, or the save has failed."""
        shards = [Shard(*fields) for fields in ranks.gather(mine.as_tuple)]
        sizes = [shard.size for shard in shards]
        taken = exchange.give_and_take(self._store.path(mine), self._keepers, sizes, ranks)

        def write() -> None:
            for rank, content in taken.items():
                fill = partial(_write_bytes, content)
                replica = self._store.write(mine.save, rank, ranks.world_size, fill)
                if replica != shards[rank]:
                    raise CheckpointError(f"the replica {self._store.path(replica)} differs from its original")

        ranks.each(write)

    def _is_whole(self, found: Found, ranks: Ranks) -> bool:
        """Each rank reads what it would serve; what is damaged is left out until all that is served is whole."""
        while found.is_complete(ranks.world_size):
            mine = [shard for shard in found.shards.values() if found.holder(shard.rank) == ranks.rank]
            bad = [(shard.rank, problem) for shard in mine if (problem := self._store.problem(shard)) is not None]
            everywhere = [(holder, *each) for holder, part in enumerate(ranks.gather(bad)) for each in part]
            if not everywhere:
                return True
            for holder, rank, problem in everywhere:
                found.holders[rank].discard(holder)
                self._skip(found.save, f"{problem}; looking for its replica", ranks)
        lost = [rank for rank in range(ranks.world_size) if not found.holders[rank]]
        self._skip(found.save, f"nothing whole is left of the shard of rank {lost[0]}", ranks)
        return False

    def _fetch(self, found: Found, ranks: Ranks) -> torch.Tensor:
        holders = [found.holder(rank) for rank in range(ranks.world_size)]
        paths = {rank: self._store.path(shard) for rank, shard in found.shards.items()}
        sizes = [found.shards[rank].size for rank in range(ranks.world_size)]
        return exchange.fetch(paths, holders, sizes, ranks)

    def _skip(self, save: SaveId, problem: str, ranks: Ranks) -> None:
        if ranks.rank == 0:
            logger().warning(line(0, f"local checkpoint of step {save[0]}: {problem}"))


class Found:
    """A save, and which ranks see a copy of each shard."""

    def __init__(self, save: SaveId) -> None:
        self.save = save
        self.shards: dict[int, Shard] = {}
        self.holders: defaultdict[int, set[int]] = defaultdict(set)

    def add(self, holder: int, shard: Shard) -> None:
        self.shards[shard.rank] = shard
        self.holders[shard.rank].add(holder)

    def is_complete(self, world_size: int) -> bool:
        return all(self.holders[rank] for rank in range(world_size))

    def holder(self, rank: int) -> int:
        """The rank that serves this shard: its own where it sees a copy, else the lowest that does."""
        return rank if rank in self.holders[rank] else min(self.holders[rank])


def _owners(tensors: dict[str, torch.Tensor], ranks: Ranks) -> dict[str, int]:
    """Which rank writes what all of them hold alike; ranks that hold other tensors write all of theirs."""
    alike = {name: value for name, value in tensors.items() if not isinstance(value, DTensor)}
    forms = {name: _form(value) for name, value in alike.items()}
    if any(other != forms for other in ranks.gather(forms)):
        return {}
    sums: checksums.Sums = {name: {"size": value.nbytes, "crc32": 0} for name, value in alike.items()}
    return {name: rank for rank in range(ranks.world_size) for name in checksums.share(sums, rank, ranks.world_size)}


def _parse(data: torch.Tensor) -> dict[str, Any]:
    try:
        saved: dict[str, Any] = torch.load(io.BytesIO(data.numpy().data), weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(f"it cannot be loaded: {error}") from error
    return saved


def _write_bytes(data: torch.Tensor, file: IO[bytes]) -> None:
    file.write(data.numpy().data)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _form(tensor: torch.Tensor) -> list[Any]:
    local = _local(tensor)
    return [str(local.dtype), *local.shape]


def _check_forms(tensors: dict[str, torch.Tensor], saved: dict[str, list[Any]]) -> None:
    present = {name: _form(tensor) for name, tensor in tensors.items()}
    different = [name for name in sorted({*present, *saved}) if present.get(name) != saved.get(name)]
    if different:
        raise CheckpointError(f"the saved state does not fit: {different[0]} differs. Has the model changed?")


def _fill(target: torch.Tensor, saved: torch.Tensor | None, owner: int | None, ranks: Ranks) -> None:
    """Collective where another rank may have written what all hold alike."""
    value = torch.empty(target.shape, dtype=target.dtype) if saved is None else saved
    if owner is not None and not ranks.alone:
        dist.broadcast(value, owner, group=ranks.group)
    with torch.no_grad():
        target.copy_(value)
