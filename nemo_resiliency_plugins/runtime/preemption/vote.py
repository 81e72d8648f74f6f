"""How the ranks agree to stop after the same step, without a collective on the main thread or the GPU."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

from nemo_resiliency_plugins.errors import ResiliencyError

INTERVAL_S = 0.5
"""Seconds between two rounds of a vote in which nobody has anything to say."""
DECISION_LIMIT_S = 120.0
"""Every rank's thread answers in a round's time, unless its process is stopped or its interpreter locked up."""
LEAVE_S = 2.0

Maximum = Callable[[list[float]], list[float]]
"""Collective: the element-wise maximum over all ranks. RuntimeError or ValueError when a rank or the group is gone."""


class VoteError(ResiliencyError):
    """The ranks could not agree where to stop: one of them is gone."""


class LocalVote:
    """A rank that asks nobody."""

    def __init__(self) -> None:
        self._noticed = False
        self.ticks = 0
        self.told = False
        """Whether a tick has said to stop."""

    def notice(self) -> None:
        """This rank has had a notice."""
        self._noticed = True

    def tick(self) -> bool:
        """Whether to stop here. All ranks call this in the same order."""
        self.told = self._noticed
        return self.told

    def settle(self) -> None:
        """Return when a notice that came before the call is known to this rank."""

    def close(self, *, together: bool) -> None:
        """End the vote; ``together``: all ranks do so now, otherwise this one goes alone."""


class Vote(LocalVote):
    """A thread on every rank votes in rounds; the main thread pays a count and a look at a flag per tick.

    Ticks are counted per rank, and all ranks pass them in the same order. When a round says that a rank has noticed,
    every thread first raises ``holding`` and then contributes its rank's count; the maximum is the last tick that is
    still passed. The main thread does the opposite: it counts first and looks at ``holding`` then. So a rank that has
    passed a tick without waiting has contributed at least that tick, and no rank has passed one beyond the maximum.
    A rank that waits below the maximum goes on afterwards, which frees those that wait for it in a collective. The
    decision needs the threads alone, wherever the main threads are.

    Args:
        maximum: on a group that nobody else uses.
        noticed: called in the thread when all ranks have learned of a notice.
        broken: called in the thread with the error that has ended the vote; a rank that waits at a tick, or comes to
            one after a notice, gets a :class:`VoteError`.
    """

    def __init__(
        self,
        maximum: Maximum,
        *,
        noticed: Callable[[], None],
        broken: Callable[[Exception], None],
        interval_s: float = INTERVAL_S,
    ) -> None:
        super().__init__()
        self._maximum, self._tell_noticed, self._tell_broken = maximum, noticed, broken
        self._interval_s = interval_s
        self.holding = False
        self._stop_after = math.inf
        self._leaving = self._abandoned = False
        self._wake = threading.Event()
        self._changed = threading.Condition()
        self._begun = self._done = 0
        self._over = False
        self._thread = threading.Thread(target=self._run, name="nrp-vote", daemon=True)
        self._thread.start()

    def notice(self) -> None:
        super().notice()
        self._wake.set()

    def tick(self) -> bool:
        self.ticks += 1
        if self.holding:
            self._await_decision()
            self.told = self.ticks > self._stop_after
        return self.told

    def settle(self) -> None:
        wanted = self._begun + 1
        self._wake.set()
        self._await(lambda: self._over or self._done >= wanted)

    def close(self, *, together: bool) -> None:
        self._leaving, self._abandoned = True, not together
        self._wake.set()
        self._thread.join(LEAVE_S)
        self._abandoned = True
        self._wake.set()
        self._thread.join(self._interval_s)

    def _await_decision(self) -> None:
        self._await(lambda: self._over)
        if self._stop_after == math.inf:
            raise VoteError("the ranks cannot agree after which step to stop: one of them is gone")

    def _await(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(condition, DECISION_LIMIT_S)

    def _run(self) -> None:
        try:
            while self._goes_on():
                continue
        except (RuntimeError, ValueError) as error:
            self._tell_broken(error)
        finally:
            self._announce(over=True)

    def _goes_on(self) -> bool:
        """One round; whether there is to be another."""
        self._wake.wait(self._interval_s)
        self._wake.clear()
        if self._abandoned:
            return False
        self._begun += 1
        noticed, staying = self._maximum([float(self._noticed), float(not self._leaving)])
        if noticed:
            self._decide()
        self._announce(over=False)
        return bool(staying and not noticed)

    def _decide(self) -> None:
        self._tell_noticed()
        self.holding = True
        [self._stop_after] = self._maximum([float(self.ticks)])

    def _announce(self, *, over: bool) -> None:
        with self._changed:
            self._done, self._over = self._begun, over
            self._changed.notify_all()
