"""Which layer decides: the variable, then the file that the plugin sends, the script's config, and the default."""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from nemo_resiliency_plugins import FaultTolerancePlugin, runtime
from nemo_resiliency_plugins.config import FaultToleranceConfig
from nemo_resiliency_plugins.config.rules import field_names
from nemo_resiliency_plugins.contract import encode_value, variable
from nemo_resiliency_plugins.runtime.effective import resolve

LAYERS = ("script", "file", "variable")
VALUES: list[dict[str, tuple[Any, Any, Any]]] = [
    {
        "enable_ft_package": (True, False, True),
        "calc_ft_timeouts": (True, False, True),
        "simulate_fault": (True, False, True),
        "simulated_fault_type": ("rank_hung", "rank_killed", "random"),
        "simulated_fault_rank": (3, 0, 7),
        "simulated_fault_base_delay": (1e-3, 0, 12345.678),
        "fault_script": ("kill@1:3,hang@0:5", "exception@2:0", "hang@10:99,kill@3:4,kill@3:5"),
        "warmup_steps": (17, 0, 10**6),
        "section_span_s": (0.0625, 0, 3.5),
        "timeout_safety_factor": (1, 9.75, 1e3),
        "timeout_floor_s": (0.1, 1e-6, 31.0),
        "startup_timeout_s": (None, 0.5, 1e9),
        "zero_code": (True, False, True),
    },
    {
        "enable_ft_package": (False, True, False),
        "calc_ft_timeouts": (False, True, False),
        "simulate_fault": (False, True, False),
        "simulated_fault_rank": (5, None, 0),
        "fault_script": ("hang@0:1", "kill@1:2,kill@2:1", ""),
        "startup_timeout_s": (77, 1e-3, None),
        "zero_code": (False, True, False),
    },
]
"""For each field a value of each layer, those included that set back to the default."""
CASES = [(field, values[field]) for values in VALUES for field in values]
SUBSETS = [subset for size in range(4) for subset in itertools.combinations(LAYERS, size)]


def effective(directory: Path, script: dict[str, Any], file: dict[str, Any], variables: dict[str, Any]) -> Any:
    path = directory / "config.json"
    path.write_text(json.dumps({"fault_tolerance": file, "another": {"warmup_steps": 1}}))
    env = {variable("fault_tolerance", name): encode_value(value) for name, value in variables.items()}
    return resolve(FaultToleranceConfig, FaultToleranceConfig(**script), {**env, "NRP_CONFIG": str(path)})


def test_every_field_has_a_case() -> None:
    assert list(VALUES[0]) == field_names(FaultToleranceConfig)


@pytest.mark.parametrize(("field", "values"), CASES)
@pytest.mark.parametrize("present", SUBSETS, ids=" ".join)
def test_the_highest_layer_that_sets_a_field_decides(
    tmp_path: Path, field: str, values: tuple[Any, ...], present: tuple[str, ...]
) -> None:
    by_layer = dict(zip(LAYERS, values, strict=True))
    config = effective(tmp_path, *({field: by_layer[layer]} if layer in present else {} for layer in LAYERS))
    expected = by_layer[present[-1]] if present else getattr(FaultToleranceConfig(), field)
    assert config == dataclasses.replace(FaultToleranceConfig(), **{field: expected})


@pytest.mark.parametrize("turn", range(len(SUBSETS)))
def test_each_field_is_decided_on_its_own(tmp_path: Path, turn: int) -> None:
    given: dict[str, dict[str, Any]] = {layer: {} for layer in LAYERS}
    expected = dataclasses.asdict(FaultToleranceConfig())
    for number, (field, values) in enumerate(VALUES[0].items()):
        for layer in SUBSETS[(number + turn) % len(SUBSETS)]:
            given[layer][field] = expected[field] = values[LAYERS.index(layer)]
    assert dataclasses.asdict(effective(tmp_path, *given.values())) == expected


def test_a_field_that_the_plugin_leaves_at_its_default_stays_open_for_the_script(tmp_path: Path) -> None:
    told = FaultTolerancePlugin(warmup_steps=7).told_to_the_job()
    config = effective(tmp_path, {"warmup_steps": 8, "timeout_floor_s": 3.5}, told, {})
    assert (config.warmup_steps, config.timeout_floor_s) == (7, 3.5)


@pytest.mark.parametrize(
    ("script", "file", "variables", "on"),
    [
        ({}, {"simulate_fault": True, "simulated_fault_rank": 1}, {"simulate_fault": False}, False),
        ({"simulated_fault_rank": 1}, {}, {"simulate_fault": True}, True),
        ({"simulate_fault": True}, {"simulated_fault_rank": 1}, {}, True),
    ],
    ids=["switched off", "switched on", "switched on below"],
)
def test_one_layer_may_switch_the_fault_that_another_describes(
    tmp_path: Path, script: dict[str, Any], file: dict[str, Any], variables: dict[str, Any], on: bool
) -> None:
    config = effective(tmp_path, script, file, variables)
    assert (config.simulate_fault, config.simulated_fault_rank) == (on, 1)
    assert config.without_effect() == ({} if on else {"simulated_fault_rank": 1})


def test_the_effective_configuration_is_logged_once_and_by_rank_0_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setenv(variable("fault_tolerance", "warmup_steps"), "2")
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        with runtime.session(FaultToleranceConfig(timeout_floor_s=3.5)) as session:
            session.finish()
    expected = FaultToleranceConfig(warmup_steps=2, timeout_floor_s=3.5)
    [said] = [message for message in caplog.messages if "effective configuration" in message]
    assert said.startswith("[FaultTolerance] rank 0: effective configuration: ")
    assert str(expected) in said
