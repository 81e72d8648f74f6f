"""FaultTolerancePlugin: what it plans, what it refuses, and that it changes nothing before every check has passed."""

from __future__ import annotations

import copy
import dataclasses
import math
from pathlib import Path
from typing import Any

import nemo_run as run
import pytest
import yaml
from nemo_run.core.execution.launcher import FaultTolerance, SlurmRay, Torchrun

from nemo_resiliency_plugins import ConfigError, ConflictError, FaultTolerancePlugin, UnsupportedError
from nemo_resiliency_plugins.compat import nvrx
from nemo_resiliency_plugins.contract import decode_arguments
from nemo_resiliency_plugins.plugins.fault_tolerance import FaultTolerancePluginScriptArgs
from tests.plugins.slurm import CODE_IS_THERE

NON_DEFAULT: dict[str, Any] = {
    "enable_ft_package": False,
    "calc_ft_timeouts": False,
    "num_in_job_restarts": 7,
    "num_job_retries_on_failure": 9,
    "initial_rank_heartbeat_timeout": 900,
    "rank_heartbeat_timeout": 77,
    "rank_section_timeouts": {"evaluation": 50},
    "rank_out_of_section_timeout": 88.0,
    "workload_check_interval": 2.0,
    "monitor_interval": 0.7,
    "workers_stop_timeout": 9.0,
    "term_timeout": 33.0,
    "simulate_fault": True,
    "simulated_fault_type": "rank_hung",
    "simulated_fault_rank": 2,
    "simulated_fault_base_delay": 4,
    "fault_script": "kill@1:3",
    "warmup_steps": 2,
    "section_span_s": 0.5,
    "timeout_safety_factor": 3.0,
    "timeout_floor_s": 10.0,
    "zero_code": True,
    "overrides": "megatron_bridge",
    "strict": True,
    "max_job_attempts": 5,
    "start_skew_s": 42.0,
    "trains": 1,
    "spare_nodes": 1,
    "prestart_imports": [],
}


def as_options(args: FaultTolerancePluginScriptArgs) -> list[str]:
    return ["--ft", str(args.enable_ft_package)]


def settings_of(executor: run.LocalExecutor) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(Path(executor.env_vars["PET_FT_CFG_PATH"]).read_text())
    return content["fault_tolerance"]


def state_of(task: Any, executor: run.LocalExecutor) -> Any:
    return copy.deepcopy((dataclasses.asdict(task), dataclasses.asdict(executor)))


def test_planning_changes_nothing(task: run.Script, executor: run.LocalExecutor, nemorun_home: Path) -> None:
    before = state_of(task, executor)
    FaultTolerancePlugin().preview(task, executor)
    assert state_of(task, executor) == before
    assert not nemorun_home.exists()


def test_the_defaults_become_sections_and_no_heartbeats(task: run.Script, executor: run.LocalExecutor) -> None:
    FaultTolerancePlugin().setup(task, executor)
    settings = settings_of(executor)
    assert settings["rank_section_timeouts"] == {"setup": 1800, "step": 300, "checkpointing": 420}
    assert settings["rank_out_of_section_timeout"] == 300
    assert settings["initial_rank_heartbeat_timeout"] is settings["rank_heartbeat_timeout"] is None
    assert isinstance(executor.launcher, FaultTolerance)
    assert executor.launcher.max_restarts == 3
    assert executor.env_vars["NRP_FAULT_TOLERANCE__ENABLE_FT_PACKAGE"] == "true"


def test_a_long_step_limit_lengthens_checkpointing_too(task: run.Script, executor: run.LocalExecutor) -> None:
    FaultTolerancePlugin(rank_heartbeat_timeout=7200).setup(task, executor)
    assert settings_of(executor)["rank_section_timeouts"]["checkpointing"] == 7200


@pytest.mark.parametrize(("given", "limit"), [(None, 300), (math.inf, None), (50.0, 50.0)])
def test_time_out_of_sections_follows_the_step_limit_unless_told(
    task: run.Script, executor: run.LocalExecutor, given: float | None, limit: float | None
) -> None:
    FaultTolerancePlugin(rank_out_of_section_timeout=given).setup(task, executor)
    assert settings_of(executor)["rank_out_of_section_timeout"] == limit


def test_without_the_package_no_limit_is_set_that_nobody_would_feed(
    task: run.Script, executor: run.LocalExecutor
) -> None:
    FaultTolerancePlugin(enable_ft_package=False).setup(task, executor)
    settings = settings_of(executor)
    assert set(settings["rank_section_timeouts"].values()) == {None}
    assert settings["rank_out_of_section_timeout"] is None


def test_the_two_switches_are_always_sent(task: run.Script, executor: run.LocalExecutor) -> None:
    FaultTolerancePlugin(calc_ft_timeouts=False, enable_ft_package=False).setup(task, executor)
    sent = {name: value for name, value in executor.env_vars.items() if name.startswith("NRP_FAULT_TOLERANCE__")}
    assert sent["NRP_FAULT_TOLERANCE__CALC_FT_TIMEOUTS"] == "false"
    assert sent["NRP_FAULT_TOLERANCE__ENABLE_FT_PACKAGE"] == "false"
    assert "NRP_FAULT_TOLERANCE__WARMUP_STEPS" not in sent


def test_twice_is_once(task: run.Script, executor: run.LocalExecutor) -> None:
    plugin = FaultTolerancePlugin(overrides="megatron_bridge", fault_script="kill@1:3")
    plugin.setup(task, executor)
    once = state_of(task, executor)
    plugin.setup(task, executor)
    assert state_of(task, executor) == once


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(FaultTolerancePlugin) if field.init])
def test_every_field_reaches_the_job(name: str, tmp_path: Path) -> None:
    executors = [
        run.LocalExecutor(job_dir=str(tmp_path)),
        slurm_group(tmp_path),
    ]
    plugins = [FaultTolerancePlugin(), FaultTolerancePlugin(**{name: value_for(name)})]
    for executor in executors:
        usual, changed = (plugin.plan(run.Script("train.py", entrypoint="python"), executor) for plugin in plugins)
        assert list(map(repr, usual)) != list(map(repr, changed))


def test_imports_ahead_of_no_restart_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fields: dict[str, Any] = {"num_in_job_restarts": 0, "prestart_imports": ["torch", "wave"]}
    task = run.Script("train.py", entrypoint="python")
    with pytest.raises(UnsupportedError, match=r"prestart_imports=.*has no effect with num_in_job_restarts=0"):
        FaultTolerancePlugin(**fields, strict=True).plan(task, slurm_group(tmp_path))
    FaultTolerancePlugin(num_in_job_restarts=0, strict=True).plan(task, slurm_group(tmp_path))
    FaultTolerancePlugin(**fields).setup(task, slurm_group(tmp_path))
    assert "has no effect with num_in_job_restarts=0" in caplog.text


def slurm_group(tmp_path: Path) -> run.SlurmExecutor:
    executor = run.SlurmExecutor(account="a", packager=CODE_IS_THERE, nodes=3, job_dir=str(tmp_path))
    executor.run_as_group = True
    return executor


def value_for(name: str) -> Any:
    return as_options if name == "script_args_converter_fn" else NON_DEFAULT[name]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("enable_ft_package", 1),
        ("num_in_job_restarts", -1),
        ("num_in_job_restarts", 2.0),
        ("num_job_retries_on_failure", True),
        ("rank_heartbeat_timeout", 0),
        ("rank_heartbeat_timeout", math.nan),
        ("initial_rank_heartbeat_timeout", "30"),
        ("rank_section_timeouts", {"step": -1}),
        ("rank_section_timeouts", {"a b": 1}),
        ("rank_section_timeouts", [1]),
        ("prestart_imports", "torch"),
        ("prestart_imports", ["torch", "no package"]),
        ("rank_section_timeouts", {"out_of_section": 5}),
        ("workload_check_interval", 0),
        ("simulated_fault_type", "hang"),
        ("fault_script", "kill@one:3"),
        ("warmup_steps", -1),
        ("timeout_safety_factor", 0.5),
        ("overrides", "megatron"),
        ("script_args_converter_fn", lambda args: []),
        ("strict", None),
    ],
)
def test_nonsense_is_refused_with_field_value_rule_and_remedy(name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        FaultTolerancePlugin(**{name: value})
    error = caught.value
    assert name in error.field
    assert error.rule in str(error)
    assert error.remedy in str(error)


def test_zero_restarts_and_no_limit_are_values_of_their_own(task: run.Script, executor: run.LocalExecutor) -> None:
    FaultTolerancePlugin(num_in_job_restarts=0, rank_heartbeat_timeout=None).setup(task, executor)
    assert isinstance(executor.launcher, FaultTolerance)
    assert executor.launcher.max_restarts == 0
    assert settings_of(executor)["rank_section_timeouts"]["step"] is None


@pytest.mark.parametrize("present", [None, "torchrun", "ft", Torchrun(rdzv_port=4), FaultTolerance(rdzv_port=4)])
def test_a_launcher_of_the_same_kind_is_taken_over(task: run.Script, tmp_path: Path, present: Any) -> None:
    executor = run.LocalExecutor(launcher=present, job_dir=str(tmp_path))
    FaultTolerancePlugin().setup(task, executor)
    assert isinstance(executor.launcher, FaultTolerance)
    assert executor.launcher.rdzv_port == (getattr(present, "rdzv_port", 29500))


def test_what_the_user_set_on_the_launcher_wins_or_is_refused(task: run.Script, tmp_path: Path) -> None:
    executor = run.LocalExecutor(launcher=FaultTolerance(log_level="DEBUG"), job_dir=str(tmp_path))
    FaultTolerancePlugin().setup(task, executor)
    assert executor.launcher.log_level == "DEBUG"
    executor = run.LocalExecutor(launcher=FaultTolerance(max_restarts=9), job_dir=str(tmp_path))
    before = state_of(task, executor)
    with pytest.raises(ConflictError, match=r"launcher.max_restarts=9: the plugin wants 3"):
        FaultTolerancePlugin().setup(task, executor)
    assert state_of(task, executor) == before


@pytest.mark.parametrize("present", [SlurmRay(), Torchrun(nsys_profile=True), "slurm_ray"])
def test_a_launcher_that_cannot_be_replaced_is_refused(task: run.Script, tmp_path: Path, present: Any) -> None:
    executor = run.LocalExecutor(launcher=present, job_dir=str(tmp_path))
    with pytest.raises(ConflictError):
        FaultTolerancePlugin().setup(task, executor)
    assert executor.launcher == present
    assert task.path == "train.py"


def test_a_profiler_switched_on_afterwards_is_refused(task: run.Script, executor: run.LocalExecutor) -> None:
    FaultTolerancePlugin().setup(task, executor)
    executor.launcher.nsys_profile = True
    with pytest.raises(ConflictError, match="nsys"):
        executor.get_launcher_prefix()


def test_a_variable_of_the_user_wins_over_a_default(task: run.Script, executor: run.LocalExecutor) -> None:
    executor.env_vars["PET_MONITOR_INTERVAL"] = "1"
    FaultTolerancePlugin().setup(task, executor)
    assert executor.env_vars["PET_MONITOR_INTERVAL"] == "1"


def test_a_variable_of_the_user_against_a_chosen_value_is_a_conflict(
    task: run.Script, executor: run.LocalExecutor
) -> None:
    task.env["PET_MONITOR_INTERVAL"] = "1"
    before = state_of(task, executor)
    with pytest.raises(ConflictError, match=r"PET_MONITOR_INTERVAL.*'0\.5'.*'1'"):
        FaultTolerancePlugin(monitor_interval=0.5).setup(task, executor)
    assert state_of(task, executor) == before


def test_two_plugins_of_a_kind_that_differ_are_a_conflict(task: run.Script, executor: run.LocalExecutor) -> None:
    FaultTolerancePlugin(warmup_steps=2).setup(task, executor)
    with pytest.raises(ConflictError, match="FaultTolerancePlugin has set"):
        FaultTolerancePlugin(warmup_steps=3).setup(task, executor)


@pytest.mark.parametrize(
    "executor",
    [
        run.SlurmExecutor(account="a", heterogeneous=True),
        run.DockerExecutor(container_image="i"),
        run.LocalExecutor(nodes=2),
    ],
    ids=lambda executor: type(executor).__name__,
)
def test_an_executor_that_is_not_supported_is_named(task: run.Script, executor: Any) -> None:
    with pytest.raises(UnsupportedError, match=r"executor"):
        FaultTolerancePlugin().setup(task, executor)
    assert task.path == "train.py"


@pytest.mark.parametrize("version", [None, "0.3.0", "0.8.0", "1.0"])
def test_a_machine_without_a_tried_nvrx_is_told_the_options(
    task: run.Script, executor: run.LocalExecutor, monkeypatch: pytest.MonkeyPatch, version: str | None
) -> None:
    monkeypatch.setattr(nvrx, "installed_version", lambda: version)
    with pytest.raises(UnsupportedError, match=r"nemo-resiliency-plugins\[runtime\].*glibc"):
        FaultTolerancePlugin().setup(task, executor)


def test_by_default_nothing_is_appended_to_the_script(task: run.Script, executor: run.LocalExecutor) -> None:
    FaultTolerancePlugin().setup(task, executor)
    assert decode_arguments(task.args) == ["train.py", "--steps", "3"]


def test_megatron_bridge_overrides_come_after_the_users_arguments(
    task: run.Script, executor: run.LocalExecutor
) -> None:
    FaultTolerancePlugin(overrides="megatron_bridge", calc_ft_timeouts=False).setup(task, executor)
    added = ["ft.enable_ft_package=true", "ft.calc_ft_timeouts=false"]
    assert decode_arguments(task.args) == ["train.py", "--steps", "3", *added]


def test_an_override_that_the_user_gave_is_not_repeated(executor: run.LocalExecutor) -> None:
    task = run.Script("train.py", entrypoint="python", args=["ft.enable_ft_package=true", "--x"])
    FaultTolerancePlugin(overrides="megatron_bridge").setup(task, executor)
    given = ["ft.enable_ft_package=true", "--x", "ft.calc_ft_timeouts=true"]
    assert decode_arguments(task.args) == ["train.py", *given]


def test_an_override_against_the_users_is_a_conflict(executor: run.LocalExecutor) -> None:
    task = run.Script("train.py", entrypoint="python", args=["ft.enable_ft_package=false"])
    with pytest.raises(ConflictError, match=r"ft.enable_ft_package=true.*ft.enable_ft_package=false"):
        FaultTolerancePlugin(overrides="megatron_bridge").setup(task, executor)
    assert task.args == ["ft.enable_ft_package=false"]
    assert executor.launcher is None


def test_a_converter_decides_what_the_script_is_told(task: run.Script, executor: run.LocalExecutor) -> None:
    FaultTolerancePlugin(script_args_converter_fn=as_options).setup(task, executor)
    assert decode_arguments(task.args)[-2:] == ["--ft", "True"]


def flag_and_value(_: FaultTolerancePluginScriptArgs) -> list[str]:
    return ["--switch", "x"]


def test_a_converter_may_use_a_word_that_is_a_key_of_the_users(task: run.Script, executor: run.LocalExecutor) -> None:
    task.args.append("x=1")
    FaultTolerancePlugin(script_args_converter_fn=flag_and_value).setup(task, executor)
    assert decode_arguments(task.args)[-3:] == ["x=1", "--switch", "x"]


def test_overrides_need_a_script_to_append_to(executor: run.LocalExecutor) -> None:
    task = run.Script(inline="echo hello")
    with pytest.raises(UnsupportedError, match="overrides"):
        FaultTolerancePlugin(overrides="megatron_bridge").setup(task, executor)


def test_retries_of_the_job_are_said_to_have_no_effect_here(
    task: run.Script, executor: run.LocalExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    FaultTolerancePlugin(num_job_retries_on_failure=5).setup(task, executor)
    assert "num_job_retries_on_failure has no effect" in caplog.text
    with pytest.raises(UnsupportedError, match="num_job_retries_on_failure"):
        FaultTolerancePlugin(num_job_retries_on_failure=4, strict=True).plan(task, executor)


def test_zero_code_needs_a_script_that_the_stub_can_run(
    executor: run.LocalExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    task = run.Script(inline="echo hello")
    with pytest.raises(UnsupportedError, match="zero_code"):
        FaultTolerancePlugin(zero_code=True, strict=True).setup(task, executor)
    FaultTolerancePlugin(zero_code=True).setup(task, executor)
    assert "only a run.Script with a path is watched" in caplog.text
    assert executor.env_vars["NRP_FAULT_TOLERANCE__ZERO_CODE"] == "true"


def test_the_plugin_survives_fiddle(task: run.Script, executor: run.LocalExecutor) -> None:
    import fiddle as fdl

    config = run.Config(FaultTolerancePlugin, rank_section_timeouts={"step": 5.0}, strict=True)
    plugin = fdl.build(config)
    assert plugin == FaultTolerancePlugin(rank_section_timeouts={"step": 5.0}, strict=True)
    assert fdl.build(plugin.to_config()) == plugin


def test_what_was_planned_survives_a_clone_of_the_executor(task: run.Script, executor: run.LocalExecutor) -> None:
    plugin = FaultTolerancePlugin(monitor_interval=0.5)
    plugin.setup(task, executor)
    clone = executor.clone()
    assert clone.launcher == executor.launcher
    with pytest.raises(ConflictError):
        FaultTolerancePlugin(monitor_interval=0.6).setup(task, clone)
