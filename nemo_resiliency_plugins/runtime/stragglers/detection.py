"""Straggler detection of a session: measures every step, reports after some, and says whether to stop."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nemo_resiliency_plugins.config import NVRxStragglerDetectionConfig
from nemo_resiliency_plugins.contract import nowhere_path
from nemo_resiliency_plugins.runtime.agreement import Ranks
from nemo_resiliency_plugins.runtime.events import EventLog
from nemo_resiliency_plugins.runtime.identity import Identity
from nemo_resiliency_plugins.runtime.log import line, logger
from nemo_resiliency_plugins.runtime.not_working import report as not_working
from nemo_resiliency_plugins.runtime.stragglers import telling
from nemo_resiliency_plugins.runtime.stragglers.gpu import NO_KERNELS, GpuTimes
from nemo_resiliency_plugins.runtime.stragglers.phases import Phases
from nemo_resiliency_plugins.runtime.stragglers.schedule import Schedule
from nemo_resiliency_plugins.runtime.stragglers.scores import Confirmation, Report, Said, Straggler
from nemo_resiliency_plugins.runtime.stragglers.waits import OwnClock
from nemo_resiliency_plugins.runtime.stragglers.window import FEWEST, Window

if TYPE_CHECKING:
    import torch

TOO_FEW = f"a rank has seen fewer than {FEWEST} steps with a forward and a backward pass of an attached module"
NO_MODULE = "no module was attached"


class NoStragglers:
    """Stands in where stragglers are not looked for."""

    found: Sequence[Straggler] = ()
    """Because of whom all ranks are to stop; on all ranks alike."""

    def attached(
        self, models: Sequence[torch.nn.Module], optimizers: Sequence[torch.optim.Optimizer], ranks: Ranks
    ) -> None:
        """Collective. There is something to measure, and somebody to compare with."""

    def loop_begins(self) -> None:
        """The ranks are before a step."""

    def step_begins(self) -> None:
        """This rank begins a step."""

    def step_ends(self, completed: int) -> None:
        """Collective where a report is due."""

    def training_ends(self, completed: int) -> None:
        """Collective. Report what has not been reported; it is too late to stop for it."""

    def close(self) -> None:
        """Measure no more; no collective."""


def start(config: NVRxStragglerDetectionConfig, identity: Identity, events: EventLog, *, strict: bool) -> NoStragglers:
    return Stragglers(config, identity, events, strict=strict) if config.enabled else NoStragglers()


class Stragglers(NoStragglers):
    """Measures from :meth:`attached` on."""

    def __init__(
        self, config: NVRxStragglerDetectionConfig, identity: Identity, events: EventLog, *, strict: bool
    ) -> None:
        self._config, self._identity, self._events, self._strict = config, identity, events, strict
        self._measuring: Measuring | None = None
        self._stops = config.stop_if_detected
        self._confirmation = Confirmation(config.reports_to_confirm)

    def attached(
        self, models: Sequence[torch.nn.Module], optimizers: Sequence[torch.optim.Optimizer], ranks: Ranks
    ) -> None:
        self._measuring = Measuring(self._config, models, optimizers, ranks, self._identity.node)
        if not (self._config.calc_relative_gpu_perf or self._config.calc_individual_gpu_perf):
            self._report_nothing(
                "both kinds of scores are off", "Switch on calc_relative_gpu_perf or the individual one"
            )
        if not models and self._measuring.no_gpu:
            self._report_nothing(f"no module was attached, and {self._measuring.no_gpu}", "Attach it in state=")
        if self._stops and ranks.decide(self._nowhere_to_go):
            self._stops = False

    def loop_begins(self) -> None:
        if self._measuring is None:
            self._report_nothing("attach() was not called", "Call it before the loop")

    def step_begins(self) -> None:
        if self._measuring is not None:
            self._measuring.step_begins()

    def step_ends(self, completed: int) -> None:
        if self._measuring is not None and self._measuring.step_ends():
            stragglers = self._report(self._measuring, completed)
            self.found = stragglers if self._stops else ()

    def training_ends(self, completed: int) -> None:
        if self._measuring is not None and self._measuring.steps and not self._measuring.ranks.dissolved:
            self._report(self._measuring, completed)

    def close(self) -> None:
        if self._measuring is not None:
            if self._measuring.steps and self._identity.rank == 0:
                logger().info(line(0, f"the last {self._measuring.steps} steps are in no straggler report"))
            self._measuring.close()
            self._measuring = None

    def _report_nothing(self, reason: str, remedy: str) -> None:
        what, rank = "straggler detection was asked for, but nothing is measured", self._identity.rank
        not_working(what, reason, remedy, feature="stragglers", rank=rank, events=self._events, strict=self._strict)

    def _nowhere_to_go(self) -> int:
        """On rank 0."""
        identity = self._identity
        nowhere = identity.directory is not None and nowhere_path(identity.directory, identity.attempt).exists()
        if nowhere:
            text = "the job could not leave a straggler's node before: from here on stragglers are warnings only"
            logger().warning(line(0, text))
        return int(nowhere)

    def _report(self, measuring: Measuring, completed: int) -> Sequence[Straggler]:
        began = time.perf_counter()
        report = Report(measuring.said(), self._config)
        stragglers = self._confirmation.confirmed(report.slow())
        if self._identity.rank == 0:
            seconds = time.perf_counter() - began
            shown = self._config.num_gpu_perf_scores_to_print if self._config.enable_logging else None
            telling.tell(report, stragglers, self._events, step=completed, seconds=seconds, shown=shown)
        return stragglers


class Measuring:
    """The clocks of one rank. Creating it and :meth:`said` are collectives, :meth:`step_ends` at times."""

    def __init__(
        self,
        config: NVRxStragglerDetectionConfig,
        models: Sequence[torch.nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        ranks: Ranks,
        node: str,
    ) -> None:
        self.ranks, self._node = ranks, node
        self._no_host = "" if models else NO_MODULE
        self._clock = OwnClock()
        self._phases = Phases(models, optimizers, self._clock.now)
        self._window = Window()
        self._gpu = GpuTimes(ranks, node, profiling_interval=config.profiling_interval)
        self._schedule = Schedule(config.report_time_interval, ranks.maximum, fewest=FEWEST + 1)
        self.steps = 0
        """Since the last report."""
        self._is_first = True

    @property
    def no_gpu(self) -> str:
        """Why there are no scores of GPUs, on all ranks alike; empty where there are."""
        return self._gpu.absent

    def step_begins(self) -> None:
        self._gpu.step_begins()
        self._phases.step_begins()

    def step_ends(self) -> bool:
        """Whether to report."""
        seconds = self._phases.step_ends()
        self._gpu.step_ends()
        if seconds is not None and not self._is_first:  # which is not like the others
            self._window.add(seconds)
        self._is_first = False
        self.steps += 1
        return self._schedule.step_ends()

    def said(self) -> list[Said]:
        """What each rank says of the steps since the last call."""
        self.steps = 0
        gpu = self._gpu.scores()
        host = None if self._no_host else self._window.close()
        mine = Said(self._node, gpu, self._gpu.absent or NO_KERNELS, host, self._no_host or TOO_FEW)
        return [Said(**fields) for fields in self.ranks.gather(dataclasses.asdict(mine))]

    def close(self) -> None:
        self._phases.close()
        self._gpu.close()
        self._clock.close()
