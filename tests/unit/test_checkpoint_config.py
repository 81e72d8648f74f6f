from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn

from nemo_resiliency_plugins import runtime
from nemo_resiliency_plugins.config import CheckpointConfig
from nemo_resiliency_plugins.contract import variable
from nemo_resiliency_plugins.errors import ConfigError
from nemo_resiliency_plugins.runtime.effective import resolve

BAD = [
    ("async_save", 1),
    ("ckpt_format", "safetensors"),
    ("non_persistent_local_ckpt_dir", ""),
    ("non_persistent_local_ckpt_dir", 3),
    ("non_persistent_local_ckpt_algo", "parallel"),
    ("non_persistent_save_interval", 0),
    ("non_persistent_save_interval", True),
    ("tolerated_save_failures", -1),
    ("drain_timeout_s", 0),
    ("drain_timeout_s", float("inf")),
    ("start_over", None),
]


@pytest.mark.parametrize(("field", "value"), BAD)
def test_a_bad_value_is_refused_with_its_field(field: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        CheckpointConfig(**{field: value})  # type: ignore[arg-type]
    assert caught.value.field == f"CheckpointConfig.{field}"


@pytest.mark.parametrize("ckpt_format", ["torch", "zarr", "fsdp_dtensor"])
def test_another_format_is_not_saved_asynchronously(ckpt_format: str) -> None:
    with pytest.raises(ConfigError, match=r'ckpt_format.*has no async_save.*Set ckpt_format="torch_dist"'):
        CheckpointConfig(async_save=True, ckpt_format=ckpt_format)
    assert CheckpointConfig(ckpt_format=ckpt_format).ckpt_format == ckpt_format


def test_a_variable_wins_over_the_script() -> None:
    given = CheckpointConfig(async_save=True, tolerated_save_failures=2)
    config = resolve(CheckpointConfig, given, {"NRP_CHECKPOINT__TOLERATED_SAVE_FAILURES": "0"})
    assert (config.async_save, config.tolerated_save_failures) == (True, 0)


def attach(**given: Any) -> None:
    with runtime.session() as session:
        session.attach(**given)


@pytest.mark.parametrize(("field", "value"), [("async_save", "true"), ("non_persistent_local_ckpt_dir", "/tmp/x")])
def test_a_format_of_the_users_own_is_saved_by_its_functions_alone(
    monkeypatch: pytest.MonkeyPatch, field: str, value: str
) -> None:
    monkeypatch.setenv(variable("checkpoint", field), value)
    with pytest.raises(ConfigError, match=rf"{field}.*cannot be used with save=, load= and latest="):
        attach(save=lambda step: None, load=lambda step: None, latest=lambda: None)


def test_a_format_that_the_session_does_not_write_needs_functions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NRP_CHECKPOINT__CKPT_FORMAT", "zarr")
    with pytest.raises(ConfigError, match=r"is not written by the session.*Give save="):
        attach(state={"model": nn.Linear(1, 1)}, directory=tmp_path)
