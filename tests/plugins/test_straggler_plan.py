"""StragglerPlugin: what it plans and what it refuses."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import nemo_run as run
import pytest

from nemo_resiliency_plugins import ConfigError, ConflictError, FaultTolerancePlugin, StragglerPlugin, UnsupportedError
from nemo_resiliency_plugins.contract import decode_arguments
from nemo_resiliency_plugins.plugins.script_args import StragglerPluginScriptArgs
from tests.plugins.slurm import make, policy, told

OVERRIDES = [
    "nvrx_straggler.enabled=true",
    "nvrx_straggler.report_time_interval=60",
    "nvrx_straggler.calc_relative_gpu_perf=true",
    "nvrx_straggler.calc_individual_gpu_perf=true",
    "nvrx_straggler.num_gpu_perf_scores_to_print=5",
    "nvrx_straggler.gpu_relative_perf_threshold=0.7",
    "nvrx_straggler.gpu_individual_perf_threshold=0.7",
    "nvrx_straggler.stop_if_detected=true",
    "nvrx_straggler.enable_logging=true",
    "nvrx_straggler.profiling_interval=1",
]


def script(*arguments: str) -> run.Script:
    return run.Script("train.py", entrypoint="python", args=list(arguments))


def test_the_job_is_told_that_it_is_on_and_what_was_chosen(task: run.Script, tmp_path: Path) -> None:
    executor = make(tmp_path)
    StragglerPlugin(report_time_interval=60, reports_to_confirm=3).setup(task, executor)
    expected = {"enabled": True, "report_time_interval": 60, "reports_to_confirm": 3}
    assert told(executor)["straggler"] == expected
    assert task.args == ["--steps", "3"]


def test_it_can_be_switched_off_in_the_list(task: run.Script, tmp_path: Path) -> None:
    executor = make(tmp_path)
    StragglerPlugin(enabled=False).setup(task, executor)
    assert told(executor)["straggler"] == {"enabled": False}


def test_the_bound_of_exclusions_reaches_the_batch_script(task: run.Script, tmp_path: Path) -> None:
    executor = make(tmp_path)
    StragglerPlugin(stop_if_detected=True, max_node_exclusions=0).setup(task, executor)
    assert "nrp_max_exclusions=0\n" in policy(executor)


def test_on_one_machine_the_session_is_told_by_variables(task: run.Script, executor: run.LocalExecutor) -> None:
    StragglerPlugin(gpu_relative_perf_threshold=0.5).setup(task, executor)
    expected = {"NRP_STRAGGLER__ENABLED": "true", "NRP_STRAGGLER__GPU_RELATIVE_PERF_THRESHOLD": "0.5"}
    assert executor.env_vars == expected


@pytest.mark.parametrize("stops", [True, False])
def test_on_one_machine_no_other_node_is_promised(
    task: run.Script, executor: run.LocalExecutor, stops: bool, caplog: pytest.LogCaptureFixture
) -> None:
    plugin = StragglerPlugin(stop_if_detected=stops)
    plugin.setup(task, executor)
    said = "stop_if_detected ends the run and excludes no node"
    assert (said in caplog.text, said in plugin.preview(task, executor)) == (stops, stops)


def test_a_bound_of_exclusions_has_no_effect_on_one_machine(
    task: run.Script, executor: run.LocalExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    StragglerPlugin(max_node_exclusions=1).setup(task, executor)
    assert "max_node_exclusions has no effect" in caplog.text
    with pytest.raises(UnsupportedError, match="max_node_exclusions=2"):
        StragglerPlugin(max_node_exclusions=2, strict=True).plan(task, executor)


def test_scripts_of_megatron_bridge_are_told_by_overrides(task: run.Script, tmp_path: Path) -> None:
    plugin = StragglerPlugin(report_time_interval=60, stop_if_detected=True, overrides="megatron_bridge")
    plugin.setup(task, make(tmp_path))
    plugin.setup(task, make(tmp_path))
    assert task.args == ["--steps", "3", *OVERRIDES]


def as_options(args: StragglerPluginScriptArgs) -> list[str]:
    return ["--straggler", str(args.stop_if_detected)]


def test_a_converter_decides_what_the_script_is_told(task: run.Script, executor: run.LocalExecutor) -> None:
    StragglerPlugin(script_args_converter_fn=as_options).setup(task, executor)
    assert task.args[-2:] == ["--straggler", "False"]


@pytest.mark.parametrize(
    "argument",
    [
        "straggler.log_straggler=true",
        "straggler.log_straggler=True",
        "straggler.log_straggler='true'",
        "straggler.log_straggler=yes",
        "straggler.log_straggler=1",
        "+straggler.log_straggler=TRUE",
        "++straggler.log_straggler=on",
        "straggler.log_straggler=${oc.env:X}",
        "--log-straggler",
        "--log_straggler",
    ],
)
@pytest.mark.parametrize("overrides", [None, "megatron_bridge"])
def test_megatrons_older_detector_never_runs_beside_it(tmp_path: Path, argument: str, overrides: str | None) -> None:
    task, executor = script("--x", argument), make(tmp_path)
    before = copy.deepcopy((task, executor))
    with pytest.raises(ConflictError) as caught:
        StragglerPlugin(overrides=overrides).setup(task, executor)
    assert (task, executor) == before
    assert (caught.value.field, caught.value.value) == ("task.args", argument)
    assert "older straggler detector" in caught.value.rule
    assert "Remove the argument" in caught.value.remedy


@pytest.mark.parametrize(
    "arguments",
    [
        ["straggler.log_straggler=false"],
        ["++straggler.log_straggler=0"],
        ["straggler.log_straggler=true", "straggler.log_straggler=Off"],
        ["straggler.straggler_minmax_count=16"],
        ["--straggler-minmax-count", "16", "--disable-straggler-on-startup"],
        ["other.straggler.log_straggler=true"],
    ],
)
def test_arguments_that_leave_the_older_detector_off_are_no_conflict(tmp_path: Path, arguments: list[str]) -> None:
    StragglerPlugin().setup(script(*arguments), make(tmp_path))


def test_a_plugin_that_is_switched_off_leaves_the_older_detector_alone(tmp_path: Path) -> None:
    StragglerPlugin(enabled=False).setup(script("--log-straggler"), make(tmp_path))


def test_the_older_detector_is_found_behind_the_launch_stub(executor: run.LocalExecutor) -> None:
    task = script("a b", "--log-straggler")
    FaultTolerancePlugin().setup(task, executor)
    with pytest.raises(ConflictError, match="older straggler detector"):
        StragglerPlugin().setup(task, executor)


@pytest.mark.parametrize(
    "argument",
    [
        "nvrx_straggler.enabled=false",
        "++nvrx_straggler.stop_if_detected=true",
        "+nvrx_straggler.report_time_interval=60",
        "nvrx_straggler.report_time_interval=null",
        "nvrx_straggler.profiling_interval=often",
    ],
)
@pytest.mark.parametrize("overrides", [None, "megatron_bridge"])
def test_an_argument_that_contradicts_is_refused(tmp_path: Path, argument: str, overrides: str | None) -> None:
    task, executor = script(argument), make(tmp_path)
    before = copy.deepcopy((task, executor))
    with pytest.raises(
        ConflictError, match=r"task\.args='.*nvrx_straggler.*StragglerPlugin wants .*Give both the same"
    ):
        StragglerPlugin(overrides=overrides).setup(task, executor)
    assert (task, executor) == before


def test_an_argument_that_says_the_same_stays_the_users(executor: run.LocalExecutor) -> None:
    given = ["nvrx_straggler.enabled=True", "++nvrx_straggler.report_time_interval=300", "nvrx_straggler.other=1"]
    task = script(*given)
    FaultTolerancePlugin().setup(task, executor)
    StragglerPlugin(overrides="megatron_bridge").setup(task, executor)
    arguments = decode_arguments(task.args)
    assert arguments[1:4] == given
    assert len(arguments) == 1 + 3 + 10 - 2
    assert not {"nvrx_straggler.enabled=true", "nvrx_straggler.report_time_interval=300.0"} & set(arguments)


def test_a_task_without_arguments_works_without_overrides(tmp_path: Path) -> None:
    StragglerPlugin().setup(run.Script(inline="python train.py"), make(tmp_path))
    with pytest.raises(UnsupportedError, match=r"need a run\.Script with a path"):
        StragglerPlugin(overrides="megatron_bridge").setup(run.Script(inline="python train.py"), make(tmp_path))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("enabled", 1),
        ("report_time_interval", 0),
        ("gpu_relative_perf_threshold", 1.5),
        ("gpu_individual_perf_threshold", -0.1),
        ("num_gpu_perf_scores_to_print", -1),
        ("profiling_interval", 0),
        ("reports_to_confirm", 0),
        ("stop_if_detected", "yes"),
        ("max_node_exclusions", -1),
        ("max_node_exclusions", True),
        ("overrides", "hydra"),
        ("script_args_converter_fn", lambda args: []),
        ("trains", -1),
        ("strict", "yes"),
    ],
)
def test_a_bad_value_names_field_value_rule_and_remedy(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"StragglerPlugin.{field}=.*: .*\. "):
        StragglerPlugin(**{field: value})


def test_two_plugins_that_differ_are_a_conflict(task: run.Script, tmp_path: Path) -> None:
    executor = make(tmp_path)
    StragglerPlugin(max_node_exclusions=2).setup(task, executor)
    with pytest.raises(ConflictError, match=r"policy\.max_exclusions=4"):
        StragglerPlugin(max_node_exclusions=4).setup(task, executor)
