"""The steps since the last report, and what a rank says of them."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from typing import Any

from nemo_resiliency_plugins.runtime.stragglers.phases import PHASES

LONGEST = 4096
"""Steps that are kept; of a longer interval the last ones count."""
FEWEST = 3
"""Steps below which a single long pause would be the median."""


class Window:
    """Bounded, however long the interval is."""

    def __init__(self) -> None:
        self._steps: deque[Sequence[float]] = deque(maxlen=LONGEST)
        self._best: float | None = None

    def add(self, seconds: Sequence[float]) -> None:
        """One step: seconds of each phase."""
        self._steps.append(seconds)

    def close(self) -> dict[str, Any] | None:
        """The medians in seconds, and the best total so far; begins anew. None for too few steps."""
        steps = list(self._steps)
        self._steps.clear()
        if len(steps) < FEWEST:
            return None
        total = statistics.median(map(sum, steps))
        self._best = total if self._best is None else min(self._best, total)
        phases = [statistics.median(column) for column in zip(*steps, strict=True)]
        return {"total": total, "best": self._best, **dict(zip(PHASES, phases, strict=True))}
