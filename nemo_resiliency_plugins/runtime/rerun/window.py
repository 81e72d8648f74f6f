"""The losses of the last steps, against which a spike stands out. Magnitudes count, so the sign does not matter."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

FEWEST = 5
"""With fewer steps in the window nothing is called a spike; a shorter window need only be full."""


class LossWindow:
    """The largest loss of each of the last ``size`` steps after ``warmup`` steps of the training.

    All ranks add the same numbers, the largest over all of them, so the state does not depend on their number.
    """

    def __init__(self, *, size: int, warmup: int, factor: float) -> None:
        self._values: deque[float] = deque(maxlen=size)
        self._warmup, self._factor = warmup, factor

    def limit(self, step: int) -> float:
        """The magnitude above which a loss of ``step`` is a spike; infinite where that cannot be told.

        Losses of exactly 0 give no scale to compare with, and no limit.
        """
        fewest = min(FEWEST, self._values.maxlen or FEWEST)
        scale = max(self._values, default=0.0)
        if step < self._warmup or len(self._values) < fewest or scale == 0.0:
            return math.inf
        return scale * self._factor

    def add(self, step: int, magnitude: float) -> None:
        """The step is done; ``magnitude`` is that of its largest loss."""
        if step >= self._warmup and math.isfinite(magnitude):
            self._values.append(abs(magnitude))

    def state_dict(self) -> dict[str, Any]:
        return {"values": list(self._values)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._values.clear()
        self._values.extend(float(value) for value in state.get("values", ()))
