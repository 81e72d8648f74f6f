"""In-process restart."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from nemo_resiliency_plugins.config.rules import (
    A_COUNT,
    A_STEP,
    A_SWITCH,
    NOT_NEGATIVE,
    POSITIVE,
    Rule,
    one_of,
    optional,
    validate,
)
from nemo_resiliency_plugins.errors import ConfigError


@dataclasses.dataclass
class InProcessRestartConfig:
    """After a fault the train function starts again in the same process, under NVRx's ``inprocess.Wrapper``.

    The fields and defaults are those of Megatron-Bridge's class of the same name; times are seconds.

    Attributes:
        enabled: restart in the process.
        active_world_size: ranks that train, the others are hot spares; None: all of them.
        granularity: ``"node"``: with a rank its whole node leaves the training; ``"rank"``: the rank alone.
        max_iterations: how often the function is entered in all, the first time included (as NVRx counts);
            None: no limit.
        soft_timeout: without progress for so long, a rank is made to restart; needs a main thread that runs Python.
        hard_timeout: without progress for so long, a rank is killed.
        heartbeat_interval: between two signs of life of a rank's monitor process.
        heartbeat_timeout: without one for so long, a rank counts as lost, as when its node dies.
        barrier_timeout: for all ranks to meet between two lives.
        completion_timeout: for all ranks to meet after the function has returned.
        empty_cuda_cache: give the cached GPU memory back between two lives.
        max_rank_faults: faults of one rank after which it leaves; None: no limit.
        monitor_process_logdir: a directory for the logs of the ranks' monitor processes; None: no logs.
        monitor_thread_interval: between a rank's looks at whether another one has failed.
        monitor_process_interval: between a monitor process's looks at its rank.
        progress_watchdog_interval: between two automatic signs of progress.
        last_call_wait: for further ranks to report their faults before all restart.
        termination_grace_time: between SIGTERM and SIGKILL for a rank beyond ``hard_timeout``.

    Raises:
        ConfigError: at construction, for a value that breaks its rule, or an order that NVRx refuses.
    """

    enabled: bool = False
    active_world_size: int | None = None
    granularity: str = "node"
    max_iterations: int | None = None
    soft_timeout: float = 60.0
    hard_timeout: float = 90.0
    heartbeat_interval: float = 30.0
    heartbeat_timeout: float = 60.0
    barrier_timeout: float = 120.0
    completion_timeout: float = 120.0
    empty_cuda_cache: bool = True
    max_rank_faults: int | None = None
    monitor_process_logdir: str | None = None
    monitor_thread_interval: float = 1.0
    monitor_process_interval: float = 1.0
    progress_watchdog_interval: float = 1.0
    last_call_wait: float = 1.0
    # Megatron-Bridge's value; NVRx itself has 5.
    termination_grace_time: float = 1.0

    PLUGIN: ClassVar[str] = "inprocess"
    RULES: ClassVar[dict[str, Rule]] = {
        "enabled": A_SWITCH,
        "active_world_size": optional(A_STEP),
        "granularity": one_of("node", "rank"),
        "max_iterations": optional(A_STEP),
        "soft_timeout": POSITIVE,
        "hard_timeout": POSITIVE,
        "heartbeat_interval": POSITIVE,
        "heartbeat_timeout": POSITIVE,
        "barrier_timeout": POSITIVE,
        "completion_timeout": POSITIVE,
        "empty_cuda_cache": A_SWITCH,
        "max_rank_faults": optional(A_COUNT),
        "monitor_process_logdir": optional(
            (
                lambda value: isinstance(value, str) and value.startswith("/"),
                "must be an absolute path",
                "Such as /logs.",
            )
        ),
        "monitor_thread_interval": POSITIVE,
        "monitor_process_interval": POSITIVE,
        "progress_watchdog_interval": POSITIVE,
        "last_call_wait": NOT_NEGATIVE,
        "termination_grace_time": NOT_NEGATIVE,
    }
    ORDER: ClassVar[tuple[tuple[str, str], ...]] = (
        ("soft_timeout", "hard_timeout"),
        ("hard_timeout", "barrier_timeout"),
        ("heartbeat_interval", "heartbeat_timeout"),
        ("heartbeat_timeout", "barrier_timeout"),
        ("monitor_process_interval", "heartbeat_timeout"),
        ("monitor_process_interval", "soft_timeout"),
        ("monitor_thread_interval", "soft_timeout"),
        ("progress_watchdog_interval", "soft_timeout"),
        # Not checked by NVRx: the wait takes place on ranks whose progress is watched.
        ("last_call_wait", "soft_timeout"),
    )
    """Pairs of which the first must be smaller; NVRx 0.4.1 to 0.7.0 check them with bare assertions."""

    def __post_init__(self) -> None:
        owner = type(self).__name__
        validate(owner, self, self.RULES)
        for lesser, greater in self.ORDER:
            low, high = getattr(self, lesser), getattr(self, greater)
            if low >= high:
                raise ConfigError(
                    f"{owner}.{lesser}", low, f"must be below {greater}={high:g}", "Change one of the two."
                )
