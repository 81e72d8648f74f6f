"""The preemption notice."""

from __future__ import annotations

import dataclasses
import signal
from typing import Any, ClassVar

from nemo_resiliency_plugins.config.rules import A_SWITCH, POSITIVE, Rule, is_count, one_of, optional, validate


def signal_name(value: Any) -> Any:
    """``SIGTERM`` for ``signal.SIGTERM``, 15, "TERM" and "SIGTERM"; what is no signal stays as it is."""
    if is_count(value) and value in set(signal.Signals):
        return signal.Signals(value).name
    name = f"SIG{str(value).upper().removeprefix('SIG')}"
    return name if name in signal.Signals.__members__ else value


PREEMPTION_SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2")


@dataclasses.dataclass
class PreemptionConfig:
    """What a rank does when it is told that its time is up: all ranks stop after the same step, save and leave.

    The first three fields and their defaults are those of Megatron-Bridge's ``TrainingConfig``.

    Attributes:
        exit_signal_handler: take notice of the signal.
        exit_signal: the signal that announces the end; a ``signal.Signals``, its number or its name. SIGTERM, which
            Slurm sends at a preemption whatever was asked for, counts as well.
        exit_signal_handler_for_dataloader: also for Megatron-Bridge's loader workers. Workers of a session are kept
            from the signal in any case: they serve until the rank has saved.
        grace_period_s: seconds from the signal to the end; None: unknown.
    """

    exit_signal_handler: bool = False
    exit_signal: Any = "SIGTERM"
    exit_signal_handler_for_dataloader: bool = False
    grace_period_s: float | None = None

    PLUGIN: ClassVar[str] = "preemption"
    RULES: ClassVar[dict[str, Rule]] = {
        "exit_signal_handler": A_SWITCH,
        "exit_signal": one_of(*PREEMPTION_SIGNALS),
        "exit_signal_handler_for_dataloader": A_SWITCH,
        "grace_period_s": optional(POSITIVE),
    }

    def __post_init__(self) -> None:
        self.exit_signal = signal_name(self.exit_signal)
        validate(type(self).__name__, self, self.RULES)

    @property
    def signals(self) -> tuple[str, ...]:
        """The names of the signals that are a notice."""
        return tuple(dict.fromkeys(("SIGTERM", self.exit_signal)))
