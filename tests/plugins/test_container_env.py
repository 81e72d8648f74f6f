"""Variables of the plugins reach a container whose image sets them too."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import nemo_run as run
import pytest

from nemo_resiliency_plugins import FaultTolerancePlugin, InProcessRestartPlugin, PreemptionPlugin
from nemo_resiliency_plugins.plugins.edits import SetEnv
from nemo_resiliency_plugins.slurm.inprocess import VARIABLES
from tests.plugins.slurm import make

OWN = ["MINE", "NCCL_NVLS_ENABLE"]
PLUGINS = [FaultTolerancePlugin(), PreemptionPlugin(), InProcessRestartPlugin()]
each_plugin = pytest.mark.parametrize("plugin", PLUGINS, ids=lambda plugin: type(plugin).__name__)


@each_plugin
def test_every_variable_is_named_and_the_users_list_stays(task: run.Script, tmp_path: Path, plugin: Any) -> None:
    executor = make(tmp_path, container_image="image", container_env=list(OWN))
    plugin.setup(task, executor)
    once = copy.deepcopy(executor.container_env)
    plugin.setup(task, executor)
    assert executor.container_env == once
    assert once[: len(OWN)] == OWN
    set_by_plugin = [edit.name for edit in plugin.plan(task, make(tmp_path)) if isinstance(edit, SetEnv)]
    assert set(once) == {*OWN, "NRP_ROUND", *set_by_plugin}
    assert set(executor.env_vars) <= set(once)


def test_in_process_restart_names_what_nvrx_needs(task: run.Script, tmp_path: Path) -> None:
    executor = make(tmp_path, container_image="image", env_vars={"NCCL_NVLS_ENABLE": "0"})
    InProcessRestartPlugin().setup(task, executor)
    assert set(VARIABLES) <= set(executor.container_env or ())


def test_each_task_of_a_group_names_them(task: run.Script, tmp_path: Path) -> None:
    mains = [
        make(tmp_path, container_image="one", container_env=["MINE"]),
        make(tmp_path, container_image="two"),
        make(tmp_path),
    ]
    executor = run.SlurmExecutor.merge(mains, num_tasks=3)
    executor.run_as_group = True
    FaultTolerancePlugin().setup(task, executor)
    lists = [request.container_env for request in executor.resource_group]
    assert lists == [["MINE", "NRP_ROUND"], ["NRP_ROUND"], None]


@each_plugin
def test_without_a_container_there_is_no_list(task: run.Script, tmp_path: Path, plugin: Any) -> None:
    executor = make(tmp_path)
    plugin.setup(task, executor)
    assert executor.container_env is None
