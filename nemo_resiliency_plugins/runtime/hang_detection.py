"""Hang detection in the job: the section clock, its line to the monitor, and learned limits."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from nemo_resiliency_plugins.config import FaultToleranceConfig
from nemo_resiliency_plugins.contract import OUT_OF_SECTION, SETUP, STEP
from nemo_resiliency_plugins.runtime.events import EventLog
from nemo_resiliency_plugins.runtime.identity import Identity
from nemo_resiliency_plugins.runtime.learning import Learner, Maximum
from nemo_resiliency_plugins.runtime.log import line, logger
from nemo_resiliency_plugins.runtime.monitor import Limits, Monitor
from nemo_resiliency_plugins.runtime.record import LastLife
from nemo_resiliency_plugins.runtime.sections import SectionClock


class NoHangDetection:
    """Stands in where nothing is watched."""

    watches = False
    last_life: LastLife | None = None
    """How the previous process of this rank ended."""
    step_limit_s: float | None = None
    """That which the launcher was started with."""

    def step_begins(self, step: int) -> None:
        """The rank begins ``step``."""

    def step_ends(self) -> None:
        """The running step is over."""

    def loop_ends(self) -> None:
        """The rank leaves the training loop."""

    def section(self, name: str) -> AbstractContextManager[None]:
        """The rank is in section ``name`` for a block."""
        return nullcontext()

    def paused(self) -> AbstractContextManager[None]:
        """No limit holds inside the block; detection is back afterwards, after an error too."""
        return nullcontext()

    def start_learning(self, directory: Path | None, maximum: Maximum) -> None:
        """Collective. Take over what earlier starts and runs learned, kept in ``directory``."""

    def learn(self, maximum: Maximum) -> None:
        """Collective. Agree with all ranks on what was seen so far, and tighten the limits."""

    def close(self, *, finished: bool) -> None:
        """End the watch of this rank without waiting for any other."""


class HangDetection(NoHangDetection):
    """From its creation on, the monitor knows what this rank is doing.

    Args:
        alone: no rank agrees with this one on limits, so it keeps what it learns itself.

    Raises:
        MonitorLost: the monitor cannot be reached.
    """

    def __init__(
        self, config: FaultToleranceConfig, identity: Identity, events: EventLog, *, alone: bool = False
    ) -> None:
        self._config = config
        self._identity = identity
        self._events = events
        self._monitor = Monitor(identity, events)
        configured = self._monitor.configured
        self.step_limit_s = configured.get(STEP)
        self._span_s = _span(config.section_span_s, self.step_limit_s)
        writes = alone or identity.rank == 0
        self._learner = Learner(config, configured, writes=writes, world_size=identity.world_size)
        self._clock = SectionClock(self._monitor, warmup_steps=config.warmup_steps, span_s=self._span_s)
        self._limits: Limits = {}
        self.last_life = self._monitor.last_life
        self._allow(configured, "section timeouts")
        self._report_last_life()
        self._clock.open(SETUP)

    @property
    def watches(self) -> bool:  # type: ignore[override]
        """False under a launcher that was given no timeout at all."""
        return self._monitor.has_limits

    def step_begins(self, step: int) -> None:
        self._monitor.step = step
        self._clock.step_begins()

    def step_ends(self) -> None:
        self._clock.step_ends()

    def loop_ends(self) -> None:
        self._clock.loop_ends()

    def section(self, name: str) -> AbstractContextManager[None]:
        return self._clock.within(name)

    @contextmanager
    def paused(self) -> Iterator[None]:
        self._monitor.suspend()
        try:
            with self._clock.within(OUT_OF_SECTION, samples=None):
                yield
        finally:
            self._monitor.resume()

    def start_learning(self, directory: Path | None, maximum: Maximum) -> None:
        if self._config.calc_ft_timeouts:
            last = self._monitor.last_life
            hung_in = last.hung_in if last else None
            self._allow(self._learner.start(directory, hung_in, maximum), "learned section timeouts")

    def learn(self, maximum: Maximum) -> None:
        if self._config.calc_ft_timeouts:
            self._allow(self._learner.update(self._clock.seen, maximum), "learned section timeouts")

    def close(self, *, finished: bool) -> None:
        self._monitor.close(finished=finished)

    def _allow(self, limits: Limits, what: str) -> None:
        if limits == self._limits:
            return
        self._limits = limits
        self._monitor.allow(limits, self._span_s)
        self._events.emit("timeouts", kind=what, limits_s=dict(limits))
        if self._identity.rank == 0:
            logger().info(line(0, f"{what}: {_in_words(limits)}"))

    def _report_last_life(self) -> None:
        last = self._monitor.last_life
        if last is not None:
            told = dataclasses.asdict(last.sign(self._identity.rank))
            self._events.emit("last_life", **told)


def _span(span_s: float, step_limit: float | None) -> float:
    """At most a tenth of the step limit, so that a short limit still means a quick detection."""
    return span_s if step_limit is None else min(span_s, step_limit / 10)


def _in_words(limits: Limits) -> str:
    return ", ".join(
        f"{name.replace('_', ' ')}={'none' if limit is None else f'{limit:g} s'}" for name, limit in limits.items()
    )
