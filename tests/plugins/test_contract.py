"""What every plugin keeps, alone and beside every other one."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import nemo_run as run
import pytest
from nemo_run.core.serialization.zlib_json import ZlibJSONSerializer

from nemo_resiliency_plugins import (
    CheckpointPlugin,
    ConflictError,
    FaultTolerancePlugin,
    InProcessRestartPlugin,
    PreemptionPlugin,
    RerunStateMachinePlugin,
    StragglerPlugin,
    UnsupportedError,
)
from nemo_resiliency_plugins.plugins.base import ResiliencyPlugin
from tests.plugins.slurm import make, policy, told

PLUGINS: dict[str, Callable[[], ResiliencyPlugin]] = {
    "fault tolerance": lambda: FaultTolerancePlugin(rank_heartbeat_timeout=60, strict=True),
    "preemption": lambda: PreemptionPlugin(preempt_time=90, strict=True),
    "in-process restart": lambda: InProcessRestartPlugin(active_world_size=4, strict=True),
    "checkpoint": lambda: CheckpointPlugin(async_save=True, strict=True),
    "straggler": lambda: StragglerPlugin(stop_if_detected=True, strict=True),
    "rerun": lambda: RerunStateMachinePlugin(check_for_spiky_loss=True, strict=True),
}
PAIRS = list(itertools.combinations(PLUGINS, 2))
LAUNCHERS = [None, "torchrun", "ft"]
ALONE = "in-process restart"
"""Needs ``srun`` to start the ranks, and refuses LocalExecutor."""
each_plugin = pytest.mark.parametrize("plugin", [make() for make in PLUGINS.values()], ids=list(PLUGINS))


def job(task: run.Script, executor: run.SlurmExecutor, plugins: Sequence[ResiliencyPlugin]) -> tuple[Any, ...]:
    """All that the cluster would see."""
    for plugin in plugins:
        plugin.setup(task, executor)
    fields = (executor.signal, executor.setup_lines, executor.ntasks_per_node, executor.retries, executor.srun_args)
    return (told(executor), policy(executor), executor.launcher.variables, fields, task.args)


@each_plugin
def test_twice_is_once_also_after_a_clone(task: run.Script, tmp_path: Path, plugin: ResiliencyPlugin) -> None:
    executor = make(tmp_path)
    plugin.setup(task, executor)
    once = copy.deepcopy(executor)
    plugin.setup(task, executor)
    assert executor == once
    again = executor.clone()
    assert again == once
    plugin.setup(task, again)
    assert again == once


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("pair", PAIRS, ids=" and ".join)
def test_both_orders_give_the_same(
    task: run.Script, tmp_path: Path, pair: tuple[str, str], launcher: str | None
) -> None:
    orders = list(itertools.permutations([PLUGINS[name]() for name in pair]))
    if ALONE in pair and (launcher is not None or "fault tolerance" in pair):
        for order in orders:
            with pytest.raises(ConflictError, match="in-process restart"):
                job(copy.deepcopy(task), make(tmp_path, launcher=launcher), order)
        return
    first, second = (job(copy.deepcopy(task), make(tmp_path, launcher=launcher), order) for order in orders)
    assert first == second


@each_plugin
def test_it_survives_nemo_runs_serialisation(task: run.Script, tmp_path: Path, plugin: ResiliencyPlugin) -> None:
    executor = make(tmp_path)
    plugin.setup(task, executor)
    serializer = ZlibJSONSerializer()
    back = serializer.deserialize(serializer.serialize(executor.to_config()))
    assert back == executor.to_config()


@each_plugin
def test_an_executor_that_it_does_not_support_is_named(task: run.Script, plugin: ResiliencyPlugin) -> None:
    executor = run.DockerExecutor(container_image="image")
    before = copy.deepcopy((task, executor))
    with pytest.raises(UnsupportedError, match=r"executor='DockerExecutor'.*is not supported; run.SlurmExecutor"):
        plugin.setup(task, executor)
    assert (task, executor) == before


@each_plugin
def test_a_launcher_that_cannot_be_replaced_changes_nothing(
    task: run.Script, tmp_path: Path, plugin: ResiliencyPlugin
) -> None:
    executor = make(tmp_path, launcher=run.SlurmRay())
    before = copy.deepcopy((task, executor))
    with pytest.raises(ConflictError, match=r"executor\.launcher"):
        plugin.setup(task, executor)
    assert (task, executor) == before


@each_plugin
def test_the_preview_is_what_is_done_and_changes_nothing(
    task: run.Script, tmp_path: Path, plugin: ResiliencyPlugin
) -> None:
    executor = make(tmp_path)
    before = copy.deepcopy((task, executor))
    preview = plugin.preview(task, executor)
    assert (task, executor) == before
    plugin.setup(task, executor)
    assert str(executor.setup_lines.splitlines()[-1]) in preview
    assert all(f"launcher.{name}" in preview for name in ("variables.NRP_STRICT", "config."))


@pytest.mark.parametrize("plugin", [type(make()) for name, make in PLUGINS.items() if name != ALONE])
def test_a_field_that_does_nothing_on_one_machine_is_not_silently_accepted(
    task: run.Script, executor: run.LocalExecutor, plugin: type, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(UnsupportedError, match=r"trains=1: trains has no effect"):
        plugin(trains=1, strict=True).setup(task, executor)
    plugin(trains=1).setup(task, executor)
    assert "trains has no effect" in caplog.text
