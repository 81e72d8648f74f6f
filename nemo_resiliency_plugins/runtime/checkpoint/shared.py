"""The global tier: checkpoints of all ranks in one directory that all of them share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from nemo_resiliency_plugins.errors import CheckpointError
from nemo_resiliency_plugins.runtime.agreement import Ranks
from nemo_resiliency_plugins.runtime.checkpoint import checksums, dcp, loadable
from nemo_resiliency_plugins.runtime.checkpoint.state import Content, TrainingState
from nemo_resiliency_plugins.runtime.checkpoint.store import CheckpointStore, require_resumable
from nemo_resiliency_plugins.runtime.log import line, logger


class SharedTier:
    """DCP's format in a :class:`CheckpointStore`.

    Every method is a collective over the ranks that it is given, which may be in a thread and have a group of their
    own; errors come to all of them alike.
    """

    def __init__(self, root: Path, *, keep: int, start_over: bool) -> None:
        self._store = CheckpointStore(root, keep=keep)
        self._start_over = start_over
        self._unreadable: dict[int, str] = {}

    def save(self, step: int, content: Content, ranks: Ranks) -> bool:
        """Write the checkpoint and commit it; False if a whole one of that step exists already.

        Raises:
            CheckpointError: it is not committed; those that were are as before.
        """
        if not ranks.decide(lambda: int(self._make_room(step))):
            return False
        try:
            self._write(step, content, ranks)
        except CheckpointError as error:
            free = ranks.decide(lambda: self._store.discard(step))
            raise CheckpointError(f"{error} ({free} MB were free)") from error
        return True

    def newest(self, ranks: Ranks) -> int | None:
        """The newest step whose files are what was saved, or None; what is skipped is said."""
        while True:
            step = ranks.decide(self._newest_whole)
            problem = None if step is None else self._changed(step, ranks)
            if step is None or problem is None:
                return step
            self._unreadable[step] = problem

    def load(
        self, step: int, state: TrainingState, ranks: Ranks, problem_of: Callable[[], str | None] = lambda: None
    ) -> bool:
        """Fill ``state``; False, and never again this step, if a rank could not, or has a ``problem_of()`` it then."""
        problem = None
        try:
            dcp.read(self._store.path(step), state, ranks, saved_by=self._store.manifest(step)["world_size"])
            problem = problem_of()
        except (CheckpointError, OSError, ValueError) as error:
            problem = str(error)
        agreed = ranks.first_problem(problem)
        if agreed is not None:
            self._unreadable[step] = agreed
        return agreed is None

    def _write(self, step: int, content: Content, ranks: Ranks) -> None:
        ranks.each(lambda: loadable.require(content.host))
        write = content.write or dcp.write
        files = write(self._store.path(step), content, ranks)
        sums = self._sum_up(files, ranks)
        self._unreadable.pop(step, None)
        ranks.decide(lambda: self._store.commit(step, sums, world_size=ranks.world_size, unreadable=self._unreadable))

    def _newest_whole(self) -> int | None:
        step, problems = self._store.newest_whole(self._unreadable)
        for problem in problems:
            logger().warning(line(0, f"skipped a checkpoint: {problem}"))
        return step

    def start_over(self, ranks: Ranks) -> None:
        """Nothing can be resumed from.

        Raises:
            CheckpointError: committed checkpoints are there, and to start over was not asked for.
        """
        ranks.decide(self._check_start_over)

    def _check_start_over(self) -> None:
        _, problems = self._store.newest_whole(self._unreadable)
        if not self._start_over:
            require_resumable(self._store.root, None, problems)
        if problems or self._store.leftovers():
            logger().warning(line(0, f"nothing in {self._store.root} can be resumed from: it starts over at step 0"))

    def training_id(self, ranks: Ranks) -> int:
        """A number that this directory of checkpoints has and no other one."""
        return ranks.decide(self._store.training_id)

    def _changed(self, step: int, ranks: Ranks) -> str | None:
        """Each rank reads its share of the files."""
        problem = None
        try:
            mine = checksums.share(self._store.manifest(step)["files"], ranks.rank, ranks.world_size)
            problem = checksums.first_change(self._store.path(step), mine)
        except (OSError, ValueError) as error:
            problem = repr(error)
        return ranks.first_problem(problem)

    def _make_room(self, step: int) -> bool:
        if step in self._store.committed() and self._store.is_whole(step) and step not in self._unreadable:
            return False
        note = self._store.prepare(step)
        if note:
            logger().warning(line(0, note))
        return True

    def _sum_up(self, files: list[Path], ranks: Ranks) -> checksums.Sums:
        mine = ranks.each(lambda: checksums.of_files(files))
        return {name: entry for part in ranks.gather(mine) for name, entry in part.items()}
