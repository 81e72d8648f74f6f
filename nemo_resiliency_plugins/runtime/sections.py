"""The one clock of the runtime: which section a rank is in, in few messages however short the steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from nemo_resiliency_plugins.contract import OUT_OF_SECTION, SETUP, STEP
from nemo_resiliency_plugins.runtime.timeouts import Seen


class Listener(Protocol):
    """Is told of each change: the monitor."""

    def changed(self, previous: str, current: str) -> None: ...


class SectionClock:
    """Keeps at most one section open and tells ``listener`` when that changes.

    A ``step`` section stays open over short steps until ``span_s`` has passed, so that the cost per step is a
    look at the clock. The first ``warmup_steps`` steps of each start are opened as ``setup`` instead.
    """

    def __init__(
        self,
        listener: Listener,
        *,
        warmup_steps: int,
        span_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._listener = listener
        self._warmup_left = warmup_steps
        self._span_s = span_s
        self._clock = clock
        self._opened = clock()
        self._samples = 1
        self._step_began: float | None = None
        self.current = OUT_OF_SECTION
        self.seen: dict[str, Seen] = {}

    def open(self, name: str) -> None:
        """Close what is open and open ``name``."""
        self._switch(name, self._clock())

    def close(self) -> None:
        """Leave every section."""
        if self.current != OUT_OF_SECTION:
            self.open(OUT_OF_SECTION)

    def step_begins(self) -> None:
        """Called once a step; a message goes out at most every ``span_s`` seconds."""
        now = self._clock()
        self._sample_step(now)
        if self._warmup_left > 0:
            self._warmup_left -= 1
            self._switch(SETUP, now, samples=0)
            return
        if self.current != STEP or now - self._opened >= self._span_s:
            self._switch(STEP, now)
        self._step_began = now

    def loop_ends(self) -> None:
        """The last step is over."""
        self._sample_step(self._clock())
        self.close()

    @contextmanager
    def within(self, name: str) -> Iterator[None]:
        """Be in ``name`` for a block; afterwards the surrounding section starts anew."""
        before = self.current
        self.open(name)
        try:
            yield
        finally:
            self.open(before)

    def _switch(self, name: str, now: float, samples: int = 1) -> None:
        """``samples=0``: a warm-up step may be the longest of its section, but does not show how long that takes."""
        if self.current != STEP:
            self._note(self.current, now - self._opened, self._samples)
        previous, self.current = self.current, name
        self._opened, self._samples = now, samples
        self._step_began = None
        self._listener.changed(previous, name)

    def _sample_step(self, now: float) -> None:
        if self._step_began is not None:
            self._note(STEP, now - self._step_began)
            self._step_began = None

    def _note(self, name: str, seconds: float, samples: int = 1) -> None:
        self.seen[name] = self.seen.get(name, Seen()).added(seconds, samples)
