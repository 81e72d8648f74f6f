"""Saving and resuming, all ranks together, behind an interface that a format of the user's own can take too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from nemo_resiliency_plugins.config import CheckpointConfig
from nemo_resiliency_plugins.runtime.agreement import Ranks
from nemo_resiliency_plugins.runtime.checkpoint.reporting import GLOBAL, Reporter, Save
from nemo_resiliency_plugins.runtime.checkpoint.saving import make_saver


class Checkpointer:
    """What the session uses, and its stand-in before something is attached.

    All but :meth:`step_ends` and :meth:`close` are collectives; CheckpointErrors come to all ranks alike.
    """

    def resume(self) -> int | None:
        """Restore the newest checkpoint and return its step; None where none was ever written."""
        return None

    def save(self, step: int, loss: float | None) -> None:
        """Save the state after ``step`` steps; whether and when it is durable is reported."""

    def step_ends(self, completed: int, *, saving: bool) -> None:
        """``completed`` steps are in the state; ``saving``: :meth:`save` follows."""

    def drain(self) -> None:
        """Return when the last save is durable."""

    def close(self) -> None:
        """Finish what is in flight, if that is possible in bounded time; raises nothing."""


class UserCheckpointer(Checkpointer):
    """A format of the user's own: ``latest()`` gives a step or None, ``load(step)`` and ``save(step)`` do the rest."""

    def __init__(
        self,
        ranks: Ranks,
        reporter: Reporter,
        *,
        save: Callable[[int], object],
        load: Callable[[int], object],
        latest: Callable[[], int | None],
    ) -> None:
        self._ranks, self._reporter = ranks, reporter
        self._save, self._load, self._latest = save, load, latest

    def resume(self) -> int | None:
        step = self._ranks.decide(self._latest)
        if step is not None:
            self._load(step)
        return step

    def save(self, step: int, loss: float | None) -> None:
        save = Save(step, GLOBAL, loss)
        self._save(step)
        self._ranks.barrier()
        self._reporter.durable(save, written=True)


class DcpCheckpointer(Checkpointer):
    """torch.distributed.checkpoint's format, see :class:`SharedTier`."""

    def __init__(
        self,
        root: Path,
        state: Mapping[str, Any],
        ranks: Ranks,
        reporter: Reporter,
        *,
        keep: int,
        config: CheckpointConfig,
    ) -> None:
        from nemo_resiliency_plugins.runtime.checkpoint.shared import SharedTier
        from nemo_resiliency_plugins.runtime.checkpoint.state import TrainingState

        self.state = TrainingState(state)
        self._shared = SharedTier(root, keep=keep, start_over=config.start_over)
        self._ranks = ranks
        self._saver = make_saver(config, ranks, reporter)
        self._proven = False

    def resume(self) -> int | None:
        """Falls back to older checkpoints, all ranks together, when one turns out to be damaged."""
        while (step := self._shared.newest(self._ranks)) is not None:
            if self._shared.load(step, self.state, self._ranks):
                break
        return step

    def save(self, step: int, loss: float | None) -> None:
        if not self._proven:
            self.state.require_loadable()  # what was empty at attach() has values now
            self._proven = True
        self._saver.run(Save(step, GLOBAL, loss), self.state.gather, partial(self._shared.save, step))

    def step_ends(self, completed: int, *, saving: bool) -> None:
        self._saver.boundary()

    def drain(self) -> None:
        self._saver.drain()

    def close(self) -> None:
        self._saver.close()
