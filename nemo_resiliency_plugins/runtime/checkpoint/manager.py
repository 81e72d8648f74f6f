"""Saving and resuming, all ranks together, behind an interface that a format of the user's own can take too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_resiliency_plugins.config import CheckpointConfig
from nemo_resiliency_plugins.errors import CheckpointError
from nemo_resiliency_plugins.runtime.agreement import Ranks
from nemo_resiliency_plugins.runtime.checkpoint.reporting import GLOBAL, LOCAL, Reporter, Save
from nemo_resiliency_plugins.runtime.checkpoint.saving import make_saver
from nemo_resiliency_plugins.runtime.log import line, logger
from nemo_resiliency_plugins.runtime.rerun.feature import NoResults

if TYPE_CHECKING:
    from nemo_resiliency_plugins.runtime.checkpoint.local import LocalTier
    from nemo_resiliency_plugins.runtime.checkpoint.shared import SharedTier


RESULTS = "nrp.results"
"""The entry of result validation; names with a dot are not for users."""
ASIDE = "suspect"
"""A directory beside the checkpoints, where nothing looks for one."""


class Checkpointer:
    """What the session uses, and its stand-in before something is attached.

    All but :meth:`step_ends` and :meth:`close` are collectives; CheckpointErrors come to all ranks alike.
    """

    tier: str | None = None
    """That which was resumed from."""

    def resume(self) -> int | None:
        """Restore the newest checkpoint and return its step; None where none was ever written."""
        return None

    def save(self, step: int, loss: float | None) -> None:
        """Save the state after ``step`` steps; whether and when it is durable is reported."""

    def step_ends(self, completed: int, *, saving: bool) -> bool:
        """``completed`` steps are in the state, and :meth:`save` follows if ``saving``.

        Returns:
            Whether :meth:`save_locally` is due.
        """
        return False

    def save_locally(self, step: int) -> None:
        """:meth:`save`, to the local tier."""

    def save_aside(self, step: int) -> None:
        """Keep the state in the middle of the step after ``step`` steps, to look at; nothing resumes from it."""

    def drain(self) -> None:
        """Return when the last save is durable."""

    def close(self, limit_s: float | None = None) -> None:
        """Finish what is in flight, if that is possible in ``limit_s`` or the configured seconds; raises nothing."""


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
            self.tier = GLOBAL
        return step

    def save(self, step: int, loss: float | None) -> None:
        save = Save(step, GLOBAL, loss)
        self._save(step)
        self._ranks.barrier()
        self._reporter.durable(save, written=True)


class DcpCheckpointer(Checkpointer):
    """torch.distributed.checkpoint's format, see :class:`SharedTier`, and the local tier where one is configured."""

    def __init__(
        self,
        root: Path,
        state: Mapping[str, Any],
        ranks: Ranks,
        reporter: Reporter,
        *,
        keep: int,
        config: CheckpointConfig,
        node: str = "",
        results: NoResults | None = None,
    ) -> None:
        from nemo_resiliency_plugins.runtime.checkpoint.shared import SharedTier
        from nemo_resiliency_plugins.runtime.checkpoint.state import TrainingState

        self._results = results or NoResults()
        self.state = TrainingState(state, own={RESULTS: self._results} if self._results.keeps_state else {})
        self._root, self._ranks = root, ranks
        self._shared = SharedTier(root, keep=keep, start_over=config.start_over)
        self._local = make_local_tier(config, node, ranks, self._shared)
        self._local_every = config.non_persistent_save_interval
        self._saver = make_saver(config, ranks, reporter)

    def resume(self) -> int | None:
        """The newest of both tiers; falls back, all ranks together, when one turns out to be damaged."""
        while True:
            step = self._shared.newest(self._ranks)
            found = self._local and self._local.newest(self._ranks, newer_than=-1 if step is None else step)
            if self._local and found:
                if self._local.load(found, self.state, self._ranks, self._results.problem):
                    self.tier = LOCAL
                    return found.save[0]
            elif step is None:
                self._shared.start_over(self._ranks)
                return None
            elif self._shared.load(step, self.state, self._ranks, self._results.problem):
                self.tier = GLOBAL
                return step

    def save(self, step: int, loss: float | None) -> None:
        self._saver.run(Save(step, GLOBAL, loss), self.state.gather, partial(self._shared.save, step))

    def step_ends(self, completed: int, *, saving: bool) -> bool:
        self._saver.boundary()
        every = self._local_every
        return self._local is not None and every is not None and completed % every == 0 and not saving

    def save_locally(self, step: int) -> None:
        if self._local is not None:
            self._saver.run(Save(step, LOCAL, None), self.state.gather, partial(self._local.save, step))

    def save_aside(self, step: int) -> None:
        from nemo_resiliency_plugins.runtime.checkpoint.shared import SharedTier

        try:
            SharedTier(self._root / ASIDE, keep=1, start_over=True).save(step, self.state.gather(), self._ranks)
        except CheckpointError as error:
            if self._ranks.rank == 0:
                logger().warning(line(0, f"the state of the suspect step was not kept: {error}"))

    def drain(self) -> None:
        self._saver.drain()

    def close(self, limit_s: float | None = None) -> None:
        self._saver.close(limit_s)


def make_local_tier(config: CheckpointConfig, node: str, ranks: Ranks, shared: SharedTier) -> LocalTier | None:
    """Collective. None where it was not asked for."""
    directory = config.non_persistent_local_ckpt_dir
    if directory is None or config.non_persistent_save_interval is None:
        return None
    from nemo_resiliency_plugins.runtime.checkpoint.local import LocalTier

    root = Path(directory).expanduser().absolute() / f"{shared.training_id(ranks):012x}"
    return LocalTier(root, node, ranks, parallel=config.non_persistent_local_ckpt_algo == "fully_parallel")
