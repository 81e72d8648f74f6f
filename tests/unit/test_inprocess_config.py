from __future__ import annotations

import pytest

from nemo_resiliency_plugins.config import InProcessRestartConfig
from nemo_resiliency_plugins.errors import ConfigError
from nemo_resiliency_plugins.runtime.effective import resolve

BAD = [
    ("enabled", 1),
    ("active_world_size", 0),
    ("active_world_size", True),
    ("granularity", "rack"),
    ("max_iterations", 0),
    ("soft_timeout", 0),
    ("hard_timeout", float("inf")),
    ("heartbeat_interval", None),
    ("empty_cuda_cache", None),
    ("max_rank_faults", -1),
    ("monitor_process_logdir", "logs"),
    ("last_call_wait", -1.0),
    ("termination_grace_time", "5"),
]
OUT_OF_ORDER = [
    ({"soft_timeout": 90.0}, "soft_timeout", "hard_timeout=90"),
    ({"hard_timeout": 120.0}, "hard_timeout", "barrier_timeout=120"),
    ({"heartbeat_interval": 60.0}, "heartbeat_interval", "heartbeat_timeout=60"),
    ({"heartbeat_timeout": 120.0}, "heartbeat_timeout", "barrier_timeout=120"),
    ({"monitor_process_interval": 61.0, "soft_timeout": 65.0}, "monitor_process_interval", "heartbeat_timeout=60"),
    ({"monitor_process_interval": 5.0, "soft_timeout": 5.0}, "monitor_process_interval", "soft_timeout=5"),
    ({"monitor_thread_interval": 60.0}, "monitor_thread_interval", "soft_timeout=60"),
    ({"progress_watchdog_interval": 60.0}, "progress_watchdog_interval", "soft_timeout=60"),
    ({"last_call_wait": 60.0}, "last_call_wait", "soft_timeout=60"),
]


@pytest.mark.parametrize(("field", "value"), BAD)
def test_a_bad_value_is_refused_with_its_field(field: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        InProcessRestartConfig(**{field: value})  # type: ignore[arg-type]
    assert caught.value.field == f"InProcessRestartConfig.{field}"


@pytest.mark.parametrize(("values", "field", "other"), OUT_OF_ORDER)
def test_times_out_of_order_are_refused_with_both_names(values: dict[str, float], field: str, other: str) -> None:
    with pytest.raises(ConfigError, match=rf"{field}=.*must be below {other}") as caught:
        InProcessRestartConfig(**values)  # type: ignore[arg-type]
    assert caught.value.field == f"InProcessRestartConfig.{field}"


def test_the_defaults_and_those_of_the_short_intervals_pass() -> None:
    config = InProcessRestartConfig(enabled=True)
    short = [config.monitor_thread_interval, config.monitor_process_interval, config.progress_watchdog_interval]
    assert [*short, config.last_call_wait, config.termination_grace_time] == [1.0] * 5


def test_a_variable_wins_over_the_script() -> None:
    given = InProcessRestartConfig(enabled=True, max_iterations=3)
    config = resolve(InProcessRestartConfig, given, {"NRP_INPROCESS__MAX_ITERATIONS": "null"})
    assert (config.enabled, config.max_iterations) == (True, None)
