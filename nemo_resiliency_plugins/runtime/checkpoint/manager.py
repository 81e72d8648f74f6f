"""Saving and resuming, all ranks together, behind an interface that a format of the user's own can take too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from nemo_resiliency_plugins.runtime.agreement import Ranks


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
    """torch.distributed.checkpoint's format, see :class:`SharedTier`.

    Raises:
        CheckpointError: from :meth:`resume` when committed checkpoints are there but none can be used, and from
            :meth:`save` when it could not be committed; on all ranks alike.
    """

    def __init__(
        self, root: Path, state: Mapping[str, Any], ranks: Ranks, *, keep: int, start_over: bool = False
    ) -> None:
        from nemo_resiliency_plugins.runtime.checkpoint.shared import SharedTier
        from nemo_resiliency_plugins.runtime.checkpoint.state import TrainingState

        self.state = TrainingState(state)
        self._shared = SharedTier(root, keep=keep, start_over=start_over)
        self._ranks = ranks
        self._proven = False

    def resume(self) -> int | None:
        """Falls back to older checkpoints, all ranks together, when one turns out to be damaged."""
        while (step := self._shared.newest(self._ranks)) is not None:
            if self._shared.load(step, self.state, self._ranks):
                break
        return step

    def save(self, step: int) -> bool:
        if not self._proven:
            self.state.require_loadable()  # what was empty at attach() has values now
            self._proven = True
        return self._shared.save(step, self.state.gather(), self._ranks)
