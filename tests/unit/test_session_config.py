"""What a session takes as its configuration."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from nemo_resiliency_plugins import runtime
from nemo_resiliency_plugins.errors import ConfigError

BOTH = [runtime.FaultToleranceConfig(warmup_steps=2), runtime.PreemptionConfig(exit_signal="USR1")]


@pytest.mark.parametrize("given", [BOTH, BOTH[::-1], tuple(BOTH)])
def test_a_session_takes_one_config_of_each_kind_and_logs_both_once(
    given: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with runtime.session(given):
        pass
    [told] = [record.getMessage() for record in caplog.records if "effective configuration" in record.getMessage()]
    assert "warmup_steps=2" in told
    assert "exit_signal='SIGUSR1'" in told


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ([BOTH[0], BOTH[0]], "second of its kind"),
        ([BOTH[1], None], "must be FaultToleranceConfig or PreemptionConfig"),
        ({"exit_signal": "USR1"}, "a list of them, or None"),
    ],
)
def test_a_session_refuses_other_configs(given: Any, rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        runtime.session(given)
