"""Faults that are injected on purpose, into this process and once per job."""

from __future__ import annotations

import os
import random
import signal
import threading

from nemo_resiliency_plugins.config import Fault, FaultScript, FaultToleranceConfig
from nemo_resiliency_plugins.contract import fired_path, write_atomically
from nemo_resiliency_plugins.errors import ConfigError
from nemo_resiliency_plugins.runtime.events import EventLog
from nemo_resiliency_plugins.runtime.identity import Identity
from nemo_resiliency_plugins.runtime.log import line, logger

SIGNALS = {"kill": signal.SIGKILL, "hang": signal.SIGSTOP, "rank_killed": signal.SIGKILL, "rank_hung": signal.SIGSTOP}

SIMULATED = "simulated"


class InjectedError(RuntimeError):
    """What a scripted *exception* raises."""


class FaultInjector:
    """Injects the scripted faults of this rank, and starts the simulated one at the first step."""

    def __init__(self, config: FaultToleranceConfig, identity: Identity, events: EventLog) -> None:
        self._config = config
        self._identity = identity
        self._events = events
        script = FaultScript.parse(config.fault_script)
        ranks = {"fault_script": max((fault.rank for fault in script.faults), default=0)}
        ranks["simulated_fault_rank"] = config.simulated_fault_rank or 0
        for name, rank in ranks.items():
            if identity.launched and rank >= identity.world_size:
                rule = f"names a rank that a job of {identity.world_size} ranks does not have"
                raise ConfigError(f"FaultToleranceConfig.{name}", rank, rule, "Name a smaller rank.")
        self._pending = [fault for fault in script.for_rank(identity.rank) if not self._has_fired(fault.name)]
        self._simulate = config.simulate_fault and self._first_start() and not self._has_fired(SIMULATED)
        if identity.rank == 0 and self._first_start():
            self._say_what_has_no_effect()

    @property
    def armed(self) -> bool:
        return bool(self._pending) or self._simulate

    def step_begins(self, step: int) -> None:
        if self._simulate:
            self._simulate = False
            self._start_simulation()
        for fault in [fault for fault in self._pending if fault.step == step]:
            self._pending.remove(fault)
            self._inject(fault)

    def _say_what_has_no_effect(self) -> None:
        fields = ", ".join(f"{name}={value!r}" for name, value in self._config.without_effect().items())
        if fields:
            remedy = "Set simulate_fault=True to inject that fault, or leave what describes it at its default."
            logger().warning(line(0, f"no effect without simulate_fault: {fields}. {remedy}"))

    def _first_start(self) -> bool:
        attempt = self._identity.attempt
        return attempt.restart_count == attempt.round == attempt.cycle == 0

    def _has_fired(self, name: str) -> bool:
        directory = self._identity.directory
        return fired_path(directory, name).exists() if directory else not self._first_start()

    def _inject(self, fault: Fault) -> None:
        self._announce(fault.name, fault.kind, fault.step)
        if fault.kind == "exception":
            raise InjectedError(f"injected at step {fault.step}")
        os.kill(os.getpid(), SIGNALS[fault.kind])

    def _start_simulation(self) -> None:
        """All ranks draw from the same seed, so they choose the same victim without a word."""
        attempt = self._identity.attempt
        draw = random.Random(f"{attempt.job_id} {os.environ.get('TORCHELASTIC_RUN_ID', '')}")
        rank = draw.randrange(self._identity.world_size)
        kind = draw.choice(["rank_hung", "rank_killed"])
        if self._config.simulated_fault_rank is not None:
            rank = self._config.simulated_fault_rank
        if self._config.simulated_fault_type != "random":
            kind = self._config.simulated_fault_type
        if rank == self._identity.rank:
            timer = threading.Timer(self._config.simulated_fault_base_delay, self._simulate_fault, [kind])
            timer.daemon = True
            timer.start()

    def _simulate_fault(self, kind: str) -> None:
        self._announce(SIMULATED, kind, None)
        os.kill(os.getpid(), SIGNALS[kind])

    def _announce(self, name: str, kind: str, step: int | None) -> None:
        if self._identity.directory is not None:
            write_atomically(fired_path(self._identity.directory, name), "")
        self._events.emit("fault_injected", kind=kind, step=step)
        logger().warning(line(self._identity.rank, f"injecting a fault: {kind}"))
