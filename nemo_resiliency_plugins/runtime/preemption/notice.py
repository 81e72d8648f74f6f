"""What a signal means: the end of the allocation, or a launcher that stops its workers because of a fault elsewhere."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from nemo_resiliency_plugins.config import PreemptionConfig
from nemo_resiliency_plugins.contract import ENV_NOTICE, NOTICE_LAUNCHER, notice_path
from nemo_resiliency_plugins.runtime.identity import Identity

WAIT_S = 0.1
"""Slurm signals the processes of a step one after the other, so the launcher's signal may come after ours."""
POLL_S = 0.005


def signals_of(config: PreemptionConfig) -> frozenset[signal.Signals]:
    """The signals that may announce the end."""
    return frozenset({signal.SIGTERM, signal.Signals[config.exit_signal]})


def pending_signals(status: str) -> set[int]:
    """The signals that wait in a process, from the text of its ``/proc/PID/status``."""
    masks = [line.split()[1] for line in status.splitlines() if line.startswith(("SigPnd:", "ShdPnd:"))]
    return {number for mask in masks for number in range(1, 65) if int(mask, 16) >> (number - 1) & 1}


@dataclasses.dataclass(frozen=True)
class Judge:
    """Tells a notice from a restart. ``announced``: whether a notice for this signal is to be seen anywhere."""

    mode: str | None
    announced: Callable[[int], bool]
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    @classmethod
    def from_env(cls, identity: Identity, env: Mapping[str, str]) -> Judge:
        """Called in the rank itself, while its parent is the launcher."""
        launcher = os.getppid()
        return cls(env.get(ENV_NOTICE), lambda number: _is_pending(launcher, number) or has_notice(identity))

    def is_notice(self, number: int) -> bool:
        """Takes up to ``WAIT_S`` where nothing is announced."""
        if self.mode != NOTICE_LAUNCHER or number != signal.SIGTERM:
            return True  # launchers stop their workers with SIGTERM alone
        end = self.clock() + WAIT_S
        while not self.announced(number):
            if self.clock() >= end:
                return False
            self.sleep(POLL_S)
        return True


def has_notice(identity: Identity) -> bool:
    """Whether a node script has noted that this attempt is at its end."""
    return identity.directory is not None and notice_path(identity.directory, identity.attempt).exists()


def _is_pending(pid: int, number: int) -> bool:
    try:
        return number in pending_signals(Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return False
