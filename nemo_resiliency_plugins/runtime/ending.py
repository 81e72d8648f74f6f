"""Why and how all ranks end together."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from nemo_resiliency_plugins.contract import ENV_NODE_RUN, ExitCode, Reason
from nemo_resiliency_plugins.errors import CheckpointError
from nemo_resiliency_plugins.runtime.batch import CODES, BatchNotes
from nemo_resiliency_plugins.runtime.events import EventLog
from nemo_resiliency_plugins.runtime.log import line, logger
from nemo_resiliency_plugins.runtime.loop import Loop, ranks_if_any

if TYPE_CHECKING:
    from nemo_resiliency_plugins.runtime.agreement import Ranks
    from nemo_resiliency_plugins.runtime.stragglers.scores import Straggler


class Leaving(SystemExit):
    """All ranks end in the middle of a step, on purpose."""


class Ending:
    """The first reason holds; every method is a collective."""

    def __init__(self, loop: Loop, notes: BatchNotes) -> None:
        self._loop, self._notes = loop, notes
        self.reason: Reason | None = None

    def finish(self, drain: Callable[[], None], ranks: Ranks | None, events: EventLog) -> None:
        """The training is done, and once ``drain`` returns everything is saved."""
        if self.reason is None:
            drain()
            _meet(ranks)
            self._end(Reason.FINISHED)
            events.emit("finished", step=self._loop.completed)

    def preempt(self, save: Callable[[], None], ranks: Ranks | None, events: EventLog, since_s: float) -> None:
        """Save what has been done. ``since_s``: seconds from the notice until now.

        Raises:
            CheckpointError: what was done could not be saved.
        """
        if self.reason is not None:
            return
        began = time.monotonic()
        try:
            if self._loop.completed:
                save()
        except CheckpointError:
            self._end(Reason.PREEMPTED_UNSAVED)
            raise
        save_s = time.monotonic() - began
        _meet(ranks)
        # Without attach() nothing was saved, and steps that are lost each time may not be repeated without end.
        lost = self._loop.completed > 0 and self._loop.unsaved
        self._end(Reason.PREEMPTED_UNSAVED if lost else Reason.PREEMPTED)
        events.emit("preempted", step=self._loop.completed, since_notice_s=since_s + save_s, save_s=save_s)

    def leave_stragglers(
        self, save: Callable[[], None], ranks: Ranks | None, events: EventLog, stragglers: Sequence[Straggler]
    ) -> None:
        """Save, and let the retry policy go on without the nodes of ``stragglers``. Raises CheckpointError."""
        if self.reason is not None:
            return
        save()
        _meet(ranks)
        nodes = sorted({each.node for each in stragglers})
        self._end(Reason.STRAGGLER, of=(stragglers[0].rank, " ".join(nodes)))
        events.emit("straggler_stop", step=self._loop.completed, nodes=nodes)

    def leave_results(
        self, drain: Callable[[], None], ranks: Ranks | None, events: EventLog, reason: Reason, of: tuple[int, str]
    ) -> Leaving:
        """What to raise for the ranks to end because of what rank and node ``of`` have computed.

        Under a node script the verdict tells; elsewhere the exit code of the ranks is all that there is.
        """
        try:
            drain()
        except CheckpointError as error:
            logger().warning(line(0, f"the last checkpoint is not durable: {error}"))
        _meet(ranks)
        self._end(reason, of=of)
        events.emit("results_stop", step=self._loop.completed, reason=reason.value, suspect_rank=of[0], node=of[1])
        _meet(ranks)  # a launcher ends the other ranks when the first has left
        return Leaving(ExitCode.OK if ENV_NODE_RUN in os.environ else int(CODES[reason]))

    def _end(self, reason: Reason, of: tuple[int, str] | None = None) -> None:
        self.reason = reason
        self._notes.ended(reason, self._loop.completed, of)


def _meet(ranks: Ranks | None) -> None:
    ranks = ranks or ranks_if_any()
    if ranks is not None and not ranks.dissolved:
        ranks.barrier()
