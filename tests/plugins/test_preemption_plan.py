"""PreemptionPlugin: what it plans and what it refuses."""

from __future__ import annotations

import copy
import signal
from pathlib import Path
from typing import Any

import nemo_run as run
import pytest

from nemo_resiliency_plugins import (
    ConfigError,
    ConflictError,
    FaultTolerancePlugin,
    PreemptionPlugin,
    UnsupportedError,
)
from tests.plugins.slurm import make, policy, told


def test_one_setting_reaches_slurm_the_job_and_the_batch_script(task: run.Script, tmp_path: Path) -> None:
    executor = make(tmp_path)
    plugin = PreemptionPlugin(signal=signal.SIGUSR2, preempt_time=120, scope="batch")
    plugin.setup(task, executor)
    assert executor.signal == "B:USR2@120"
    expected = {"exit_signal_handler": True, "exit_signal": "SIGUSR2", "grace_period_s": 120}
    assert told(executor)["preemption"] == expected
    assert "scancel --signal=USR2" in policy(executor)
    assert executor.srun_args == ["--wait=120"]


@pytest.mark.parametrize(
    ("launcher", "kind", "tasks"), [(None, "rank", 4), ("torchrun", "torchrun", 1), ("ft", "ft", 1)]
)
def test_alone_it_keeps_what_starts_the_ranks(
    task: run.Script, tmp_path: Path, launcher: str | None, kind: str, tasks: int
) -> None:
    executor = make(tmp_path, launcher=launcher)
    PreemptionPlugin().setup(task, executor)
    assert (told(executor)["node"]["kind"], told(executor)["node"]["nproc"]) == (kind, 4)
    assert executor.ntasks_per_node == tasks
    assert executor.signal == "TERM@60"
    assert executor.srun_args is None


def test_alone_it_takes_over_the_retries(task: run.Script, tmp_path: Path) -> None:
    executor = make(tmp_path, retries=7)
    PreemptionPlugin().setup(task, executor)
    PreemptionPlugin().setup(task, executor)
    assert executor.retries == 0
    assert "nrp_max_failures=7\n" in policy(executor)


def test_a_preempted_job_may_be_requeued_though_failures_may_not(task: run.Script, tmp_path: Path) -> None:
    executor = make(tmp_path)
    PreemptionPlugin().setup(task, executor)
    assert "nrp_max_failures=0\n" in policy(executor)
    assert "Requeue=0" not in policy(executor)


@pytest.mark.parametrize(
    ("fields", "plugin", "error", "text"),
    [
        ({"signal": "B:TERM@60"}, {}, ConflictError, r"executor.signal='B:TERM@60'.*'TERM@60'"),
        ({"signal": "TERM@60"}, {"scope": "batch"}, ConflictError, r"'TERM@60'.*'B:TERM@60'"),
        ({"signal": "USR1@60"}, {}, ConflictError, r"'USR1@60'.*'TERM@60'"),
        ({"signal": "TERM@90"}, {}, ConflictError, r"'TERM@90'.*'TERM@60'"),
        ({"additional_parameters": {"signal": "USR1@30"}}, {}, ConflictError, r"'USR1@30'.*'TERM@60'"),
        ({"additional_parameters": {"time": "00:01:00"}}, {}, ConfigError, r"preempt_time=60: must be shorter"),
        ({"time": "00:01:00"}, {}, ConfigError, r"preempt_time=60: must be shorter than.*00:01:00"),
        ({"launcher": run.SlurmRay()}, {}, ConflictError, "launcher"),
        ({"launcher": run.Torchrun(nsys_profile=True)}, {}, ConflictError, "nsys"),
        ({"heterogeneous": True}, {}, UnsupportedError, "heterogeneous"),
        ({}, {"trains": 1}, ConfigError, "trains=1: there is no such task among 1"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_changed(
    task: run.Script, tmp_path: Path, fields: dict[str, Any], plugin: dict[str, Any], error: type, text: str
) -> None:
    executor = make(tmp_path, **fields)
    before = copy.deepcopy(executor)
    with pytest.raises(error, match=text):
        PreemptionPlugin(**plugin).setup(task, executor)
    assert executor == before


@pytest.mark.parametrize("given", ["TERM@60", "SIGTERM@60", "15@60", "term@60"])
def test_a_signal_of_the_users_that_says_the_same_is_kept(task: run.Script, tmp_path: Path, given: str) -> None:
    executor = make(tmp_path, signal=given)
    PreemptionPlugin().setup(task, executor)
    assert executor.signal == "TERM@60"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("preempt_time", 0),
        ("preempt_time", 1.5),
        ("preempt_time", 70000),
        ("enable_exit_handler", "yes"),
        ("signal", "KILL"),
        ("signal", 9),
        ("scope", "job"),
        ("grace_period_s", -1),
        ("overrides", "hydra"),
        ("script_args_converter_fn", lambda args: []),
        ("max_job_attempts", 0),
    ],
)
def test_a_bad_value_names_field_value_rule_and_remedy(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"PreemptionPlugin.{field}=.*: .*\. "):
        PreemptionPlugin(**{field: value})


def test_the_signal_that_nccl_catches_is_warned_about(
    task: run.Script, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    PreemptionPlugin(signal="USR1").setup(task, make(tmp_path))
    assert "SIGUSR1 is caught by NCCL" in caplog.text


def test_two_plugins_that_differ_are_a_conflict(task: run.Script, tmp_path: Path) -> None:
    executor = make(tmp_path)
    PreemptionPlugin(grace_period_s=30).setup(task, executor)
    with pytest.raises(ConflictError, match="preemption"):
        PreemptionPlugin(grace_period_s=40).setup(task, executor)


def test_retries_of_the_executor_that_fault_tolerance_contradicts_are_a_conflict(
    task: run.Script, tmp_path: Path
) -> None:
    executor = make(tmp_path, retries=5)
    PreemptionPlugin().setup(task, executor)
    with pytest.raises(ConflictError, match=r"policy.max_failures=2.*PreemptionPlugin has set 5"):
        FaultTolerancePlugin().setup(task, executor)


def test_scripts_of_megatron_bridge_are_told_by_overrides(task: run.Script, tmp_path: Path) -> None:
    PreemptionPlugin(overrides="megatron_bridge").setup(task, make(tmp_path))
    assert task.args[-2:] == ["train.exit_signal_handler=True", "train.exit_signal_handler_for_dataloader=False"]


def test_on_one_machine_the_session_is_told_by_variables(task: run.Script, executor: run.LocalExecutor) -> None:
    PreemptionPlugin(strict=True).setup(task, executor)
    assert executor.env_vars == {
        "NRP_PREEMPTION__EXIT_SIGNAL_HANDLER": "true",
        "NRP_PREEMPTION__GRACE_PERIOD_S": "60",
        "NRP_STRICT": "true",
    }


def test_other_executors_are_refused(task: run.Script) -> None:
    with pytest.raises(UnsupportedError, match="DockerExecutor"):
        PreemptionPlugin().setup(task, run.DockerExecutor(container_image="image"))


def test_a_group_waits_as_long_as_the_save_may_take(task: run.Script, tmp_path: Path) -> None:
    executor = make(tmp_path)
    executor.run_as_group = True
    PreemptionPlugin(preempt_time=300).setup(task, executor)
    assert executor.monitor_group_job_wait_time == 300
