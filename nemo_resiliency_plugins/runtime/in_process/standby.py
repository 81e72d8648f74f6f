"""A spare rank: it waits without a session, so nobody else would take care of signals and of the watch of its start."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
from types import FrameType
from typing import Any

from nemo_resiliency_plugins.config import PreemptionConfig
from nemo_resiliency_plugins.runtime import watch
from nemo_resiliency_plugins.runtime.effective import resolve
from nemo_resiliency_plugins.runtime.preemption.notice import signals_of

WARM = ("nemo_resiliency_plugins.runtime.checkpoint.shared", "torch._dynamo")
"""What the first attach and the first optimizer load (torch 2.13): seconds that a spare has."""


class Standby:
    """A spare stays at a preemption notice: its loss would make the others restart, and they are saving."""

    def __init__(self) -> None:
        config = resolve(PreemptionConfig, None, os.environ)
        self._signals = signals_of(config) if config.exit_signal_handler else frozenset[signal.Signals]()
        self._formers: dict[int, Any] = {}

    def begin(self) -> None:
        """The rank waits from here on; NVRx watches it."""
        watch.reached_session()
        for module in WARM:
            with contextlib.suppress(ImportError):
                importlib.import_module(module)
        if not self._formers:
            self._formers = {number: signal.signal(number, _stay) for number in self._signals}

    def end(self) -> None:
        """The rank trains, or leaves."""
        for number, former in self._formers.items():
            signal.signal(number, signal.SIG_DFL if former is None else former)
        self._formers = {}


def _stay(number: int, _: FrameType | None) -> None:
    """The active ranks end the job."""
