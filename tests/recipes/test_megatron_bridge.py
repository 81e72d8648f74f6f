"""The recipe for Megatron-Bridge against the configuration classes of the real package, which are read, not run."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nemo_run as run
import pytest

from nemo_resiliency_plugins import RerunStateMachinePlugin, UnsupportedError
from nemo_resiliency_plugins.plugins.edits import script_arguments
from nemo_resiliency_plugins.recipes.factories import PLUGIN_SETS
from nemo_resiliency_plugins.recipes.own_script import megatron_bridge
from nemo_resiliency_plugins.recipes.plugin_sets import fast_recovery, in_process, production
from tests.plugins.slurm import make
from tests.versions.megatron import VERSIONS, source

OWN = ["--recipe", "llama", "model.num_layers=4", "train.train_iters=100"]
READ: dict[str, Callable[[str], Any]] = {
    "bool": lambda text: {"true": True, "false": False}[text.lower()],
    "int": int,
    "float": float,
    "str": str,
    "Optional[str]": str,
}
"""How a value of an override is read, by the annotation of its field."""


@functools.cache
def classes() -> dict[str, dict[str, str]]:
    """Fields and annotations of each class, by name."""
    tree = ast.parse(source(VERSIONS[0], "training/config.py"))
    return {
        node.name: {ast.unparse(each.target): ast.unparse(each.annotation) for each in _fields(node)}
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }


def _fields(node: ast.ClassDef) -> list[ast.AnnAssign]:
    return [each for each in node.body if isinstance(each, ast.AnnAssign)]


def addressed(section: str) -> dict[str, str]:
    """The fields of the class that ``section`` of the configuration holds."""
    annotation = classes()["ConfigContainer"][section]
    return classes()[annotation.removeprefix("Optional[").removesuffix("]")]


def overrides(tmp_path: Path, plugins: list[Any]) -> list[str]:
    """What the rendered script is given beyond the user's own arguments."""
    executor = make(tmp_path)
    task, _, plugins = megatron_bridge("pretrain.py", OWN, executor=executor, plugins=plugins)
    for plugin in plugins:
        plugin.setup(task, executor)
    arguments = script_arguments(task)
    rendered = executor.launcher.transform([task.entrypoint, *task.to_command()]).inline
    assert all(argument in rendered for argument in task.args)
    assert arguments[: len(OWN)] == OWN
    return arguments[len(OWN) :]


EVERY_SET = [
    pytest.param(plugin_set(), id=plugin_set.__name__) for plugin_set in PLUGIN_SETS if plugin_set is not in_process
]
WITH_EVERYTHING = pytest.param([*fast_recovery("/scratch"), RerunStateMachinePlugin()], id="everything")


@pytest.mark.parametrize("plugins", [*EVERY_SET, WITH_EVERYTHING])
def test_every_override_is_a_field_of_the_real_class_and_a_value_of_its_type(tmp_path: Path, plugins: Any) -> None:
    sent = overrides(tmp_path, plugins)
    sections = {override.partition(".")[0] for override in sent}
    assert {"ft", "train", "checkpoint", "nvrx_straggler"} <= sections
    for override in sent:
        key, value = override.split("=", 1)
        section, field = key.split(".")
        annotation = addressed(section)[field]
        if annotation.startswith("Literal"):
            assert repr(value) in annotation
        else:
            READ[annotation](value)


def test_the_local_tier_and_the_rerun_machine_are_told_as_well(tmp_path: Path) -> None:
    sent = overrides(tmp_path, [*fast_recovery("/scratch"), RerunStateMachinePlugin()])
    assert "checkpoint.non_persistent_local_ckpt_dir=/scratch" in sent
    assert "rerun_state_machine.rerun_mode=validate_results" in sent


def test_the_plugins_of_the_caller_stay_as_they_are(tmp_path: Path) -> None:
    plugins = production()
    assert overrides(tmp_path, plugins)
    assert plugins == production()


def test_sections_that_the_script_has_to_make_are_those_that_the_recipe_names(tmp_path: Path) -> None:
    sections = {override.partition(".")[0] for override in overrides(tmp_path, production())}
    absent = {section for section in sections if classes()["ConfigContainer"][section].startswith("Optional")}
    assert absent == {"ft", "nvrx_straggler"}
    assert all(f"cfg.{section} = " in str(megatron_bridge.__doc__) for section in absent)


def test_in_process_restart_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"InProcessRestartPlugin.*cfg\.inprocess_restart"):
        megatron_bridge("pretrain.py", executor=make(tmp_path), plugins=in_process())


def test_a_plugin_of_somebody_else_is_kept(tmp_path: Path) -> None:
    other = run.Plugin()
    _, _, [kept] = megatron_bridge("pretrain.py", executor=make(tmp_path), plugins=[other])
    assert kept is other
