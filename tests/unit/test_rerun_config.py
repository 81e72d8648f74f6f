from __future__ import annotations

import pytest

from nemo_resiliency_plugins.config import RerunStateMachineConfig
from nemo_resiliency_plugins.contract import variable
from nemo_resiliency_plugins.errors import ConfigError
from nemo_resiliency_plugins.runtime.effective import resolve

BAD = [
    ("rerun_mode", "on"),
    ("check_for_nan_in_loss", 1),
    ("check_for_spiky_loss", None),
    ("spiky_loss_factor", 1),
    ("spiky_loss_factor", float("nan")),
    ("spiky_loss_factor", float("inf")),
    ("check_for_nan_in_gradients", "yes"),
    ("spike_warmup_steps", -1),
    ("spike_window", 0),
    ("tolerance", -0.1),
    ("accept", "nan"),
    ("determinism_interval", 0),
]


@pytest.mark.parametrize(("field", "value"), BAD)
def test_a_bad_value_is_refused_with_its_field(field: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        RerunStateMachineConfig(**{field: value})  # type: ignore[arg-type]
    assert caught.value.field == f"RerunStateMachineConfig.{field}"


def test_settings_reach_the_run_by_variables() -> None:
    wanted = {"rerun_mode": "validate_results", "spiky_loss_factor": "3", "check_for_nan_in_loss": "false"}
    env = {variable(RerunStateMachineConfig.PLUGIN, name): value for name, value in wanted.items()}
    config = resolve(RerunStateMachineConfig, RerunStateMachineConfig(check_for_spiky_loss=True), env)
    assert (config.rerun_mode, config.spiky_loss_factor) == ("validate_results", 3)
    assert (config.check_for_nan_in_loss, config.check_for_spiky_loss) == (False, True)
