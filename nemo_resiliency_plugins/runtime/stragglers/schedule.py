"""After which steps the ranks report: all after the same one, without a collective per step."""

from __future__ import annotations

import time
from collections.abc import Callable

LOOK_S = 5.0
"""Seconds between looks: one small collective on the CPU."""


class Schedule:
    """Counts steps up to the next look, in which the ranks agree on how much time has passed.

    Each look is planned for half of the time that is left, but at most some seconds ahead and for twice the steps so
    far: steps that become longer delay a report by few of them.

    Args:
        interval_s: seconds between reports.
        maximum: collective; the element-wise maximum over all ranks.
        fewest: steps that an interval has, however long they are.
    """

    def __init__(
        self,
        interval_s: float,
        maximum: Callable[[list[float]], list[float]],
        *,
        fewest: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._interval_s, self._maximum, self._clock = interval_s, maximum, clock
        self._fewest = self._look = fewest
        self.restart()

    def restart(self) -> None:
        """An interval begins."""
        self._began, self._steps = self._clock(), 0
        self._next = self._look

    def step_ends(self) -> bool:
        """Collective where a look is due. Whether to report here."""
        self._steps += 1
        if self._steps < self._next:
            return False
        [elapsed] = self._maximum([self._clock() - self._began])
        a_step = max(elapsed / self._steps, 1e-6)
        left = (self._interval_s - elapsed) / a_step
        if left >= 0.5:
            self._next = self._steps + self._ahead(left, a_step)
            return False
        self._look = max(self._fewest, self._ahead(self._interval_s / a_step, a_step))
        self.restart()
        return True

    def _ahead(self, left: float, a_step: float) -> int:
        """Steps to the next look, of those that are ``left`` to a report."""
        return max(1, int(min(left / 2, LOOK_S / a_step, self._steps)))
