"""How far the training is, told by rank 0 at a distance of seconds: between checkpoints nobody else tells."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from nemo_resiliency_plugins.runtime.events import EventLog
from nemo_resiliency_plugins.runtime.identity import Identity

INTERVAL_S = 10.0


class Progress:
    """Costs a look at the clock in a step that is not told."""

    def __init__(self, identity: Identity, events: EventLog, clock: Callable[[], float] = time.monotonic) -> None:
        self._events, self._clock = events, clock
        self._next = clock() + INTERVAL_S if identity.rank == 0 else math.inf

    def step_ends(self, step: int) -> None:
        """``step`` is done."""
        now = self._clock()
        if now >= self._next:
            self._next = now + INTERVAL_S
            self._events.emit("progress", step=step + 1)
