"""Saving and resuming, all ranks together, behind an interface that a format of the user's own can take too."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from nemo_resiliency_plugins.errors import CheckpointError
from nemo_resiliency_plugins.runtime.agreement import Ranks
from nemo_resiliency_plugins.runtime.checkpoint.store import CheckpointStore, require_resumable
from nemo_resiliency_plugins.runtime.log import line, logger

HOST = "host.rank{rank:05d}"
"""The entry that holds everything of one rank that is not a tensor of a module or an optimizer."""


class Checkpointer(Protocol):
    """What the session needs. Every method is a collective."""

    def resume(self) -> int | None:
        """Restore the newest checkpoint and return its step; None where none was ever written."""

    def save(self, step: int) -> bool:
        """Write the state after ``step`` steps; False if that step exists already."""


class UserCheckpointer:
    """A format of the user's own: ``latest()`` gives a step or None, ``load(step)`` and ``save(step)`` do the rest."""

    def __init__(
        self,
        ranks: Ranks,
        *,
        save: Callable[[int], object],
        load: Callable[[int], object],
        latest: Callable[[], int | None],
    ) -> None:
        self._ranks, self._save, self._load, self._latest = ranks, save, load, latest

    def resume(self) -> int | None:
        step = self._ranks.decide(self._latest)
        if step is not None:
            self._load(step)
        return step

    def save(self, step: int) -> bool:
        self._save(step)
        self._ranks.barrier()
        return True


class DcpCheckpointer:
    """torch.distributed.checkpoint's format in a :class:`CheckpointStore`.

    Raises:
        CheckpointError: from :meth:`resume` when committed checkpoints are there but none can be used, and from
            :meth:`save` when it could not be committed; on all ranks alike.
    """

    def __init__(self, root: Path, state: Mapping[str, Any], ranks: Ranks, *, keep: int) -> None:
        from nemo_resiliency_plugins.runtime.checkpoint.state import TrainingState

        self._store = CheckpointStore(root, keep=keep)
        self.state = TrainingState(state)
        self._ranks = ranks
        self._unreadable: dict[int, str] = {}
        self._proven = False

    def resume(self) -> int | None:
        """Falls back to older checkpoints, all ranks together, when one turns out to be damaged."""
        while True:
            step = self._ranks.decide(self._newest)
            problem = None if step is None else self._load_problem(step)
            if step is None or self._ranks.maximum([float(problem is not None)]) == [0.0]:
                return step
            self._unreadable[step] = problem or "another rank could not read it"

    def save(self, step: int) -> bool:
        if not self._ranks.decide(lambda: int(self._make_room(step))):
            return False
        if not self._proven:
            self.state.require_loadable()  # what was empty at attach() has values now
            self._proven = True
        self._write(step)
        self._unreadable.pop(step, None)
        self._ranks.decide(lambda: self._store.commit(step, world_size=self._ranks.world_size))
        return True

    def _load_problem(self, step: int) -> str | None:
        """Load the checkpoint; what went wrong on this rank, or None."""
        try:
            self._load(step)
        except CheckpointError as error:
            lines = str(error).splitlines()
            # Of torch's report, the line that names the error; what follows is general advice.
            return next((line for line in lines if re.match(r"[\w.]*(Error|Exception): ", line)), lines[0])
        return None

    def _newest(self) -> int | None:
        step, problems = self._store.newest_whole(self._unreadable)
        require_resumable(self._store.root, step, problems)
        for problem in problems:
            logger().warning(line(0, f"skipped a checkpoint: {problem}"))
        return step

    def _make_room(self, step: int) -> bool:
        if step in self._store.committed() and self._store.is_whole(step) and step not in self._unreadable:
            return False
        note = self._store.prepare(step)
        if note:
            logger().warning(line(0, note))
        return True

    def _write(self, step: int) -> None:
        from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
        from torch.distributed.checkpoint.filesystem import FileSystemWriter
        from torch.distributed.checkpoint.state_dict_saver import save

        tensors, host = self.state.gather()
        with _quiet(), _reporting(self._store.path(step)):
            save(
                {**tensors, HOST.format(rank=self._ranks.rank): host},
                storage_writer=FileSystemWriter(self._store.path(step)),
                planner=DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
                process_group=self._ranks.group,
                no_dist=self._ranks.alone,
            )

    def _load(self, step: int) -> None:
        from torch.distributed.checkpoint.state_dict_loader import load

        from nemo_resiliency_plugins.runtime.checkpoint.safe_load import SafePlanner, SafeReader

        path = self._store.path(step)
        tensors, host = self.state.gather()
        entry = HOST.format(rank=self._ranks.rank % self._store.world_size(step))
        known = SafeReader(path).read_metadata().state_dict_metadata
        content: dict[str, Any] = {**self.state.leave_out(tensors, known), entry: host}
        with _quiet(), _reporting(path):
            load(
                content,
                storage_reader=SafeReader(path),
                planner=SafePlanner(),
                process_group=self._ranks.group,
                no_dist=self._ranks.alone,
            )
        host = content.pop(entry)
        self.state.scatter(content, host)


@contextmanager
def _reporting(path: Path) -> Iterator[None]:
    """torch's CheckpointException is a BaseException, and holds what each rank met."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        yield
    except (CheckpointException, OSError) as error:
        raise CheckpointError(f"{path}: {error}") from error


def _quiet() -> warnings.catch_warnings:
    """torch 2.13 warns of its own deprecated calls inside save and load."""
    guard = warnings.catch_warnings()
    warnings.simplefilter("ignore")
    return guard
