"""RerunStateMachinePlugin: what it plans and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nemo_run as run
import pytest

from nemo_resiliency_plugins import ConfigError, ConflictError, RerunStateMachinePlugin, StragglerPlugin
from nemo_resiliency_plugins.plugins.script_args import RerunStateMachinePluginScriptArgs
from tests.plugins.slurm import make, policy, told

OVERRIDES = [
    "rerun_state_machine.rerun_mode=validate_results",
    "rerun_state_machine.check_for_nan_in_loss=true",
    "rerun_state_machine.check_for_spiky_loss=true",
    "rerun_state_machine.spiky_loss_factor=3",
]


def test_the_job_is_told_that_it_is_on_and_what_was_chosen(task: run.Script, tmp_path: Path) -> None:
    executor = make(tmp_path)
    RerunStateMachinePlugin(check_for_spiky_loss=True, spiky_loss_factor=3).setup(task, executor)
    expected = {"rerun_mode": "validate_results", "check_for_spiky_loss": True, "spiky_loss_factor": 3}
    assert told(executor)["rerun_state_machine"] == expected
    assert task.args == ["--steps", "3"]


def test_it_can_be_switched_off_in_the_list(task: run.Script, tmp_path: Path) -> None:
    executor = make(tmp_path)
    RerunStateMachinePlugin(rerun_mode="disabled").setup(task, executor)
    assert told(executor)["rerun_state_machine"] == {"rerun_mode": "disabled"}


def test_the_bound_of_exclusions_is_one_for_both_reasons_to_leave_a_node(task: run.Script, tmp_path: Path) -> None:
    executor = make(tmp_path)
    RerunStateMachinePlugin(max_node_exclusions=1).setup(task, executor)
    StragglerPlugin(stop_if_detected=True, max_node_exclusions=1).setup(task, executor)
    assert "nrp_max_exclusions=1\n" in policy(executor)
    with pytest.raises(ConflictError, match=r"policy\.max_exclusions=2"):
        StragglerPlugin(stop_if_detected=True, max_node_exclusions=2).setup(task, executor)


@pytest.mark.parametrize("mode", ["validate_results", "report_determinism_stats"])
def test_on_one_machine_variables_tell_and_no_other_node_is_promised(
    task: run.Script, executor: run.LocalExecutor, mode: str
) -> None:
    plugin = RerunStateMachinePlugin(rerun_mode=mode, tolerance=0.5)
    preview = plugin.preview(task, executor)
    plugin.setup(task, executor)
    expected = {"NRP_RERUN_STATE_MACHINE__RERUN_MODE": mode, "NRP_RERUN_STATE_MACHINE__TOLERANCE": "0.5"}
    assert executor.env_vars == expected
    assert ("LocalExecutor has no other node" in preview) == (mode == "validate_results")


def test_scripts_of_megatron_bridge_are_told_by_overrides(task: run.Script, tmp_path: Path) -> None:
    plugin = RerunStateMachinePlugin(check_for_spiky_loss=True, spiky_loss_factor=3, overrides="megatron_bridge")
    plugin.setup(task, make(tmp_path))
    plugin.setup(task, make(tmp_path))
    assert task.args == ["--steps", "3", *OVERRIDES]


def as_options(args: RerunStateMachinePluginScriptArgs) -> list[str]:
    return ["--rerun-mode", args.rerun_mode]


def test_a_converter_decides_what_the_script_is_told(task: run.Script, executor: run.LocalExecutor) -> None:
    RerunStateMachinePlugin(script_args_converter_fn=as_options).setup(task, executor)
    assert task.args[-2:] == ["--rerun-mode", "validate_results"]


@pytest.mark.parametrize(
    "argument",
    [
        "rerun_state_machine.rerun_mode=disabled",
        "++rerun_state_machine.check_for_nan_in_loss=false",
        "+rerun_state_machine.spiky_loss_factor=20",
    ],
)
def test_an_argument_that_contradicts_is_refused(tmp_path: Path, argument: str) -> None:
    task = run.Script("train.py", entrypoint="python", args=[argument])
    with pytest.raises(ConflictError, match=r"RerunStateMachinePlugin wants .*Give both the same"):
        RerunStateMachinePlugin().setup(task, make(tmp_path))


def test_an_argument_that_says_the_same_stays_the_users(tmp_path: Path) -> None:
    given = ["rerun_state_machine.rerun_mode=validate_results", "rerun_state_machine.spiky_loss_factor=10"]
    task = run.Script("train.py", entrypoint="python", args=list(given))
    RerunStateMachinePlugin(overrides="megatron_bridge").setup(task, make(tmp_path))
    assert task.args[:2] == given
    assert len(task.args) == 4


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rerun_mode", True),
        ("spiky_loss_factor", 0),
        ("accept", ""),
        ("max_node_exclusions", -1),
        ("overrides", "hydra"),
        ("script_args_converter_fn", lambda args: []),
        ("trains", -1),
        ("strict", "yes"),
    ],
)
def test_a_bad_value_names_field_value_rule_and_remedy(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"RerunStateMachinePlugin.{field}=.*: .*\. "):
        RerunStateMachinePlugin(**{field: value})
