"""The features that watch a training, opened, told about its steps and closed together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nemo_resiliency_plugins.errors import NotWorkingError
from nemo_resiliency_plugins.runtime import aftermath, watching, zero_code
from nemo_resiliency_plugins.runtime.checkpoint.reporting import report_half_a_local_tier
from nemo_resiliency_plugins.runtime.effective import Configs
from nemo_resiliency_plugins.runtime.events import EventLog
from nemo_resiliency_plugins.runtime.faults import FaultInjector
from nemo_resiliency_plugins.runtime.identity import Identity
from nemo_resiliency_plugins.runtime.preemption import handling
from nemo_resiliency_plugins.runtime.prestart import imports as prestart
from nemo_resiliency_plugins.runtime.progress import Progress
from nemo_resiliency_plugins.runtime.requests import RequestedFaults
from nemo_resiliency_plugins.runtime.rerun import feature as rerun
from nemo_resiliency_plugins.runtime.stragglers import detection

if TYPE_CHECKING:
    from nemo_resiliency_plugins.runtime.agreement import Ranks


class Features:
    """What each one does is its own business; this knows the order.

    Raises:
        NotWorkingError: under ``strict``, a feature was asked for and cannot work here.
    """

    def __init__(self, configs: Configs, identity: Identity, events: EventLog, *, strict: bool) -> None:
        zero_code.give_way()
        report_half_a_local_tier(configs.checkpoint, identity.rank, events, strict=strict)
        self._identity, self._events = identity, events
        self._faults = FaultInjector(configs.fault_tolerance, identity, events)
        self._requests = RequestedFaults(identity, events)
        self._progress = Progress(identity, events)
        self.stragglers = detection.start(configs.straggler, identity, events, strict=strict)
        self.results = rerun.start(configs.rerun, identity, events, strict=strict)
        # Last, since they hold on to something: a monitor, and the signals of this process.
        self.detection = watching.start(configs.fault_tolerance, identity, events, strict=strict)
        try:
            self.preemption = handling.start(configs.preemption, identity, events, strict=strict)
        except NotWorkingError:
            self.detection.close(finished=False)
            raise

    def attached(self, models: Sequence[Any], optimizers: Sequence[Any], ranks: Ranks, resumed: int | None) -> None:
        """Collective. The state is that of ``resumed``, and the ranks can agree."""
        aftermath.tell(self._identity, ranks, self.detection.last_life, resumed)
        self._requests.attached(models)
        self.preemption.attached()
        self.stragglers.attached(models, optimizers, ranks)

    def loop_begins(self) -> None:
        """Collective."""
        self.stragglers.loop_begins()
        self.preemption.loop_begins()

    def step_begins(self, step: int) -> None:
        self.detection.step_begins(step)
        self.stragglers.step_begins()
        if self._faults.armed:
            self._faults.step_begins(step)
        self._requests.step_begins(step)

    def step_ends(self, step: int, *, first: bool) -> None:
        """Collective at times. ``first``: the first step since the start of the loop."""
        self.results.step_ends()
        self.stragglers.step_ends(step + 1)
        self.detection.step_ends()
        self._progress.step_ends(step)
        if first:
            self._events.emit("first_step", step=step)
            prestart.tell()
            self.preemption.check()

    def loop_ends(self) -> None:
        """The last step is done."""
        self.detection.loop_ends()
        self.results.loop_ends()

    def close(self, *, together: bool, finished: bool) -> None:
        """``together``: all ranks do so now, otherwise this one goes alone."""
        self.results.close()
        self.stragglers.close()
        self.preemption.close(together=together)
        self.detection.close(finished=finished)
