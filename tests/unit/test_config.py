from __future__ import annotations

import dataclasses
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_resiliency_plugins.config import Fault, FaultScript, FaultToleranceConfig
from nemo_resiliency_plugins.config.rules import changed_fields
from nemo_resiliency_plugins.errors import ConfigError
from nemo_resiliency_plugins.runtime import session
from nemo_resiliency_plugins.runtime.effective import is_strict, resolve

FAULTS = st.lists(st.builds(Fault, st.sampled_from(Fault.KINDS), st.integers(0, 10**6), st.integers(0, 10**9)))
BAD = [
    ("enable_ft_package", 1),
    ("enable_ft_package", "true"),
    ("calc_ft_timeouts", None),
    ("simulate_fault", 0),
    ("simulated_fault_type", "rank_lazy"),
    ("simulated_fault_rank", -1),
    ("simulated_fault_rank", True),
    ("simulated_fault_base_delay", -0.1),
    ("simulated_fault_base_delay", float("inf")),
    ("warmup_steps", 2.0),
    ("section_span_s", float("nan")),
    ("timeout_safety_factor", 0.9),
    ("timeout_floor_s", 0),
    ("startup_timeout_s", 0),
    ("startup_timeout_s", "1"),
]
GOOD = [
    ("simulated_fault_rank", 0),
    ("simulated_fault_base_delay", 0),
    ("warmup_steps", 0),
    ("section_span_s", 0),
    ("timeout_safety_factor", 1),
    ("startup_timeout_s", None),
]


def effective(given: FaultToleranceConfig | None = None, **env: str) -> FaultToleranceConfig:
    return resolve(FaultToleranceConfig, given, env)


def config_file(tmp_path: Path, **fields: Any) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"fault_tolerance": fields}))
    return str(path)


@pytest.mark.parametrize(("field", "value"), BAD)
def test_a_bad_value_is_refused_with_field_value_rule_and_remedy(field: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        FaultToleranceConfig(**{field: value})  # type: ignore[arg-type]
    error = caught.value
    assert error.field == f"FaultToleranceConfig.{field}"
    for part in (error.field, repr(value), error.rule, error.remedy):
        assert part and part in str(error)


@pytest.mark.parametrize(("field", "value"), GOOD)
def test_zero_and_none_are_values_of_their_own(field: str, value: object) -> None:
    assert getattr(FaultToleranceConfig(**{field: value}), field) == value  # type: ignore[arg-type]


def test_a_config_error_survives_pickling() -> None:
    error = ConfigError("field", 3, "rule", "remedy")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_variable_wins_over_the_file_the_script_and_the_default(tmp_path: Path) -> None:
    script = FaultToleranceConfig(warmup_steps=1, section_span_s=1.5, timeout_floor_s=11)
    file = config_file(tmp_path, warmup_steps=2, section_span_s=2.5)
    config = effective(script, NRP_CONFIG=file, NRP_FAULT_TOLERANCE__WARMUP_STEPS="3")
    assert (config.warmup_steps, config.section_span_s, config.timeout_floor_s) == (3, 2.5, 11)
    assert config.timeout_safety_factor == FaultToleranceConfig().timeout_safety_factor


def test_a_variable_may_set_back_to_the_default(tmp_path: Path) -> None:
    file = config_file(tmp_path, startup_timeout_s=5, warmup_steps=9)
    config = effective(
        NRP_CONFIG=file,
        NRP_FAULT_TOLERANCE__STARTUP_TIMEOUT_S="null",
        NRP_FAULT_TOLERANCE__WARMUP_STEPS="0",
    )
    assert (config.startup_timeout_s, config.warmup_steps) == (None, 0)


def test_the_file_of_other_plugins_alone_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"other": {"x": 1}}')
    assert effective(NRP_CONFIG=str(path)) == FaultToleranceConfig()


def test_an_unknown_variable_is_an_error_that_names_it() -> None:
    with pytest.raises(ConfigError, match="NRP_FAULT_TOLERANCE__WARMUP="):
        effective(NRP_FAULT_TOLERANCE__WARMUP="1")


def test_an_unknown_field_in_the_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"NRP_CONFIG:fault_tolerance\.warmup"):
        effective(NRP_CONFIG=config_file(tmp_path, warmup=1))


def test_a_bad_value_in_a_variable_is_refused_by_the_rule_of_the_field() -> None:
    with pytest.raises(ConfigError, match=r"FaultToleranceConfig\.warmup_steps=-1"):
        effective(NRP_FAULT_TOLERANCE__WARMUP_STEPS="-1")


@pytest.mark.parametrize(("text", "strict"), [("true", True), ("1", True), ("False", False), ("0", False)])
def test_strict_is_read_from_its_variable(text: str, strict: bool) -> None:
    assert is_strict({"NRP_STRICT": text}) is strict


def test_strict_is_off_by_default_and_never_guessed() -> None:
    assert is_strict({}) is False
    with pytest.raises(ConfigError, match="NRP_STRICT"):
        is_strict({"NRP_STRICT": "maybe"})


def test_only_changed_fields_are_told_apart() -> None:
    assert changed_fields(FaultToleranceConfig(warmup_steps=9, section_span_s=1.0)) == {"warmup_steps": 9}


def test_a_session_takes_no_other_config() -> None:
    with pytest.raises(ConfigError, match=r"session\.config"):
        session({"enable_ft_package": True})  # type: ignore[arg-type]


@given(FAULTS)
def test_a_fault_script_is_parsed_as_it_was_printed(faults: list[Fault]) -> None:
    script = FaultScript(tuple(faults))
    assert FaultScript.parse(str(script)) == script


def test_a_fault_script_reads_as_a_sentence() -> None:
    script = FaultScript().kill(rank=1, step=3).hang(rank=0, step=7).exception(rank=2, step=0)
    assert str(script) == "kill@1:3,hang@0:7,exception@2:0"
    assert [fault.kind for fault in script.for_rank(0)] == ["hang"]


@pytest.mark.parametrize("text", ["kill", "kill@1", "kill@-1:3", "explode@1:2", "kill@1:2;hang@1:3", "kill@1:2.5"])
def test_a_bad_fault_script_is_an_error_that_names_the_part(text: str) -> None:
    with pytest.raises(ConfigError):
        FaultToleranceConfig(fault_script=text)


def test_a_config_takes_a_fault_script_object() -> None:
    config = FaultToleranceConfig(fault_script=FaultScript().kill(rank=1, step=2))  # type: ignore[arg-type]
    assert config.fault_script == "kill@1:2"
    assert dataclasses.replace(config) == config
