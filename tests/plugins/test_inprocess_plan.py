from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import nemo_run as run
import pytest

from nemo_resiliency_plugins import (
    ConfigError,
    ConflictError,
    FaultTolerancePlugin,
    InProcessRestartConfig,
    InProcessRestartPlugin,
    PreemptionPlugin,
    UnsupportedError,
)
from nemo_resiliency_plugins.config.rules import field_names
from tests.plugins.slurm import make, policy, told

REFUSED = [
    ({"active_world_size": 12}, {}, r"active_world_size=12: is more than the 8 ranks of 2 nodes"),
    ({"active_world_size": 6}, {}, r"active_world_size=6: must be a multiple of the 4 ranks of a node"),
    ({}, {"launcher": "torchrun"}, r"executor\.launcher='Torchrun': in-process restart needs srun itself"),
    ({}, {"launcher": run.FaultTolerance()}, r"executor\.launcher='FaultTolerance': in-process restart needs srun"),
    ({}, {"env_vars": {"NCCL_NVLS_ENABLE": "1"}}, r"NCCL_NVLS_ENABLE.*has set '1'"),
]


@pytest.mark.parametrize(("fields", "options", "message"), REFUSED)
def test_what_cannot_work_is_refused_and_changes_nothing(
    task: run.Script, tmp_path: Path, fields: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    executor = make(tmp_path, **options)
    before = copy.deepcopy((task, executor))
    with pytest.raises(ConfigError, match=message):
        InProcessRestartPlugin(**fields).setup(task, executor)
    assert (task, executor) == before


def test_a_part_of_a_node_may_be_spare_where_single_ranks_leave(task: run.Script, tmp_path: Path) -> None:
    executor = make(tmp_path)
    InProcessRestartPlugin(active_world_size=6, granularity="rank").setup(task, executor)
    assert told(executor)["inprocess"] == {"enabled": True, "active_world_size": 6, "granularity": "rank"}


def test_srun_starts_each_rank_and_lets_the_others_live(task: run.Script, tmp_path: Path) -> None:
    executor = make(tmp_path, srun_args=["--mpi=none"])
    InProcessRestartPlugin().setup(task, executor)
    assert executor.srun_args == ["--mpi=none", "--no-kill", "--kill-on-bad-exit=0", "--wait=0"]
    assert executor.ntasks_per_node == 4
    assert executor.additional_parameters == {"no_kill": True}
    assert told(executor)["node"]["kind"] == "rank"
    assert told(executor)["inprocess"] == {"enabled": True}
    assert executor.env_vars["TORCH_CPP_LOG_LEVEL"] == "error"


def test_retries_of_the_executor_are_those_of_the_policy(task: run.Script, tmp_path: Path) -> None:
    executor = make(tmp_path, retries=2)
    InProcessRestartPlugin().setup(task, executor)
    assert "nrp_max_failures=2" in policy(executor)
    assert executor.retries == 0


@pytest.mark.parametrize("first", [0, 1])
def test_the_longest_wait_holds_beside_preemption(task: run.Script, tmp_path: Path, first: int) -> None:
    executor = make(tmp_path)
    plugins = [InProcessRestartPlugin(), PreemptionPlugin(preempt_time=200)]
    for plugin in (plugins[first], plugins[1 - first]):
        plugin.setup(task, executor)
    assert executor.srun_args[-1] == "--wait=0"
    assert sum(word.startswith("--wait") for word in executor.srun_args) == 1
    assert executor.signal == "TERM@200"


def test_fault_tolerance_beside_it_is_refused_with_the_reason(task: run.Script, tmp_path: Path) -> None:
    executor = make(tmp_path)
    InProcessRestartPlugin().setup(task, executor)
    with pytest.raises(ConflictError, match=r"ft_launcher would restart ranks beside it, which NVRx gave up in 0\.6"):
        FaultTolerancePlugin().setup(task, executor)
    executor = make(tmp_path)
    FaultTolerancePlugin().setup(task, executor)
    with pytest.raises(ConflictError, match=r"such a launcher ends all when one dies"):
        InProcessRestartPlugin().setup(task, executor)


def test_one_machine_is_refused_with_the_reason(task: run.Script, executor: run.LocalExecutor) -> None:
    with pytest.raises(UnsupportedError, match=r"torchrun, which ends all of them when one dies.*runtime\.inprocess"):
        InProcessRestartPlugin().setup(task, executor)


def test_a_bad_value_is_that_of_the_plugin() -> None:
    with pytest.raises(ConfigError, match=r"InProcessRestartPlugin\.soft_timeout=90\.0: must be below hard_timeout"):
        InProcessRestartPlugin(soft_timeout=90.0)


def test_the_defaults_are_those_of_the_job_but_for_the_switch() -> None:
    ours, jobs = InProcessRestartPlugin(), InProcessRestartConfig()
    differ = {name for name in field_names(InProcessRestartConfig) if getattr(ours, name) != getattr(jobs, name)}
    assert differ == {"enabled"}
