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
        self._samples: int | None = 1
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
        if self._warmup_left > 0:
            self._warmup_left -= 1
            self._switch(SETUP, now, samples=0)
            return
        if self.current != STEP or now - self._opened >= self._span_s:
            self._switch(STEP, now)
        self._step_began = now

    def step_ends(self) -> None:
        """The running step is over; its section may stay open."""
        if self._step_began is not None:
            self._note(STEP, self._clock() - self._step_began)
            self._step_began = None

    def loop_ends(self) -> None:
        """The rank leaves the loop."""
        self._step_began = None
        self.close()

    @contextmanager
    def within(self, name: str, samples: int | None = 1) -> Iterator[None]:
        """Be in ``name`` for a block; afterwards the surrounding section starts anew. See ``_switch``."""
        before, before_samples, in_step = self.current, self._samples, self._step_began is not None
        self._switch(name, self._clock(), samples)
        try:
            yield
        finally:
            now = self._clock()
            self._switch(before, now, before_samples)
            self._step_began = now if in_step else None

    def _switch(self, name: str, now: float, samples: int | None = 1) -> None:
        """``samples`` is what the time in ``name`` will count.

        0: it may be the longest of its section, but does not show how long that usually takes (a warm-up step, the
        part of a step before a section inside it). None: it is left out (a pause).
        """
        if self._step_began is not None:
            self._note(STEP, now - self._step_began, samples=0)
        elif self.current != STEP and self._samples is not None:
            self._note(self.current, now - self._opened, self._samples)
        previous, self.current = self.current, name
        self._opened, self._samples = now, samples
        self._step_began = None
        self._listener.changed(previous, name)

    def _note(self, name: str, seconds: float, samples: int = 1) -> None:
        self.seen[name] = self.seen.get(name, Seen()).added(seconds, samples)
