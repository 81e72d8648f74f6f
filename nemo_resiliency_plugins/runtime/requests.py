"""Faults that somebody asks for while the job runs: ``nemo-resiliency faults`` leaves a file, the rank looks for it."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from nemo_resiliency_plugins.config.fault_request import FaultRequest, request_path
from nemo_resiliency_plugins.errors import ConfigError
from nemo_resiliency_plugins.runtime.events import EventLog
from nemo_resiliency_plugins.runtime.faults import InjectedError
from nemo_resiliency_plugins.runtime.identity import Identity
from nemo_resiliency_plugins.runtime.log import line, logger

if TYPE_CHECKING:
    import torch

INTERVAL_S, LOOKS_PER_S = 1.0, 100
"""A rank looks at most once a second, and a job of any size so often in all: each look asks the file system."""


class RequestedFaults:
    """Of one rank. Costs a look at the clock in most steps."""

    def __init__(
        self,
        identity: Identity,
        events: EventLog,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._identity, self._events, self._clock, self._sleep = identity, events, clock, sleep
        self._interval_s = max(INTERVAL_S, identity.world_size / LOOKS_PER_S)
        self._path = request_path(identity.directory, identity.rank) if identity.directory else None
        self._next = math.inf if self._path is None else clock()
        self._models: Sequence[torch.nn.Module] = ()
        self._slow_steps, self._slow_s = 0, 0.0

    def attached(self, models: Sequence[torch.nn.Module]) -> None:
        """What a NaN can be put into."""
        self._models = models

    def step_begins(self, step: int) -> None:
        """Raises InjectedError, where that was asked for."""
        now = self._clock()
        if now >= self._next:
            self._next = now + self._interval_s
            self._look(step)
        if self._slow_steps:
            self._slow_steps -= 1
            self._sleep(self._slow_s)

    def _look(self, step: int) -> None:
        assert self._path is not None
        if not self._path.exists():
            return
        try:
            request = FaultRequest.decode(self._path.read_text())
        except (OSError, ConfigError) as error:
            logger().warning(line(self._identity.rank, f"a requested fault is not injected: {error}"))
            request = None
        with contextlib.suppress(OSError):
            self._path.unlink()
        if request is not None:
            self._inject(request, step)

    def _inject(self, request: FaultRequest, step: int) -> None:
        if request.kind == "nan" and not self._models:
            self._events.emit("fault_refused", kind=request.kind, reason="no module was attached")
            logger().warning(line(self._identity.rank, "no NaN is injected: no module was attached to the session"))
            return
        fields = {"seconds": request.seconds, "steps": request.steps} if request.kind == "slow" else {}
        self._events.emit("fault_injected", kind=request.kind, step=step, requested=True, **fields)
        logger().warning(
            line(self._identity.rank, f"injecting a fault that was asked for: {request.kind}, step {step}")
        )
        if request.kind == "exception":
            raise InjectedError(f"asked for, injected at step {step}")
        if request.kind == "slow":
            self._slow_steps, self._slow_s = request.steps, request.seconds
        if request.kind == "nan":
            poison_once(self._models[0])


def poison_once(model: torch.nn.Module) -> None:
    """The first floating-point tensor that a module of ``model`` gives next is NaN."""
    handles: list[Any] = []

    def hook(module: torch.nn.Module, inputs: Any, output: Any) -> Any:
        if not (hasattr(output, "is_floating_point") and output.is_floating_point() and handles):
            return None
        for handle in handles:
            handle.remove()
        handles.clear()
        return output * math.nan

    handles.extend(module.register_forward_hook(hook) for module in model.modules())
