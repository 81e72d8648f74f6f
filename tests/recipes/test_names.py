"""The names of recipes and plugin sets that users may rely on."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from importlib import metadata
from types import ModuleType

import nemo_run as run
import pytest

from nemo_resiliency_plugins.recipes import command_line, factories, own_script, plugin_sets, small_gpt

if sys.version_info >= (3, 11):
    import tomllib
else:  # comes with pytest there
    import tomli as tomllib

from tests.architecture.test_packages import ROOT

RECIPES = {
    own_script: ["in_process_restart", "megatron_bridge", "script"],
    small_gpt: ["small_gpt", "small_gpt_on_slurm"],
    plugin_sets: ["fast_recovery", "fault_drill", "in_process", "preemptible", "production", "with_fields"],
}
COMMANDS = ["in_process_restart", "megatron_bridge", "script", "small_gpt"]
SETS = ["fast_recovery", "fault_drill", "in_process", "preemptible", "production"]
EXECUTORS = ["local", "slurm", "slurm_over_ssh"]
GROUP, MODULE = "nemo_run.cli", "nemo_resiliency_plugins.recipes.command_line"


@pytest.mark.parametrize("module", RECIPES, ids=lambda module: module.__name__.rpartition(".")[2])
def test_a_module_offers_what_it_says(module: ModuleType) -> None:
    assert module.__all__ == RECIPES[module]
    assert all(getattr(module, name).__module__ == module.__name__ for name in module.__all__)


def test_the_commands_are_those_of_the_recipes() -> None:
    assert sorted(command.__name__ for command in command_line.COMMANDS) == COMMANDS
    known = run.cli.list_entrypoints()[command_line.NAMESPACE]
    assert sorted(known) == COMMANDS


def test_every_plugin_set_and_executor_is_a_factory() -> None:
    assert sorted(each.__name__ for each in factories.PLUGIN_SETS) == SETS
    assert sorted(each.__name__ for each in factories.EXECUTORS) == EXECUTORS
    assert all(run.cli.resolve_factory(run.Plugin, name)() for name in SETS)
    of_slurm = [run.cli.resolve_factory(run.SlurmExecutor, name)() for name in EXECUTORS[1:]]
    assert {config.__fn_or_cls__ for config in of_slurm} == {run.SlurmExecutor}
    assert run.cli.resolve_factory(run.LocalExecutor, "local")().ntasks_per_node == 2
    assert [each.__name__ for each in factories.PACKAGERS] == ["ship_nothing"]


def test_nemo_run_finds_them_in_an_installed_package() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][GROUP]
    assert declared == {command_line.NAMESPACE: MODULE}
    found = {point.name: point.value for point in metadata.entry_points(group=GROUP)}
    assert found.get(command_line.NAMESPACE) == MODULE, "the package was installed before it had this entry point"


ORDER = ["FaultTolerancePlugin", "PreemptionPlugin", "CheckpointPlugin", "StragglerPlugin"]


@pytest.mark.parametrize("plugin_set", factories.PLUGIN_SETS, ids=lambda plugin_set: plugin_set.__name__)
def test_the_plugins_of_a_set_are_in_the_order_that_command_lines_count_on(
    plugin_set: Callable[[], list[run.Plugin]],
) -> None:
    first, *others = [type(plugin).__name__ for plugin in plugin_set()]
    assert first == ("InProcessRestartPlugin" if plugin_set is plugin_sets.in_process else ORDER[0])
    assert others == ORDER[1:]
    assert all(dataclasses.is_dataclass(plugin) for plugin in plugin_set())
