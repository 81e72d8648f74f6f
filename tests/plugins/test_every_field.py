"""Every field of every plugin changes what a job gets, and one that does nothing alone says so."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import nemo_run as run
import pytest

from nemo_resiliency_plugins import (
    CheckpointPlugin,
    FaultTolerancePlugin,
    InProcessRestartPlugin,
    PreemptionPlugin,
    RerunStateMachinePlugin,
    StragglerPlugin,
    UnsupportedError,
    megatron_bridge,
)
from nemo_resiliency_plugins.plugins import fault_tolerance, node_launcher, preemption
from tests.plugins.slurm import make

PLUGINS: list[type] = [
    FaultTolerancePlugin,
    PreemptionPlugin,
    CheckpointPlugin,
    StragglerPlugin,
    InProcessRestartPlugin,
    RerunStateMachinePlugin,
    megatron_bridge.FaultTolerancePlugin,
    megatron_bridge.PreemptionPlugin,
]
NEEDS: dict[type, dict[str, tuple[str, Any]]] = {
    FaultTolerancePlugin: fault_tolerance.NEEDS,
    PreemptionPlugin: preemption.NEEDS,
    StragglerPlugin: StragglerPlugin.NEEDS,
    RerunStateMachinePlugin: RerunStateMachinePlugin.NEEDS,
}
OTHER: dict[str, Any] = {
    "ckpt_format": "torch",
    "non_persistent_local_ckpt_algo": "atomic",
    "accept": "spikes",
    "rerun_mode": "report_determinism_stats",
    "granularity": "rank",
    "signal": "USR2",
    "scope": "batch",
    "simulated_fault_type": "rank_hung",
    "fault_script": "kill@1:3",
    "rank_section_timeouts": {"evaluation": 50},
    "prestart_imports": ["torch", "megatron.core"],
    "hard_timeout": 100.0,
    "heartbeat_timeout": 90.0,
    "barrier_timeout": 200.0,
}
"""Where not just any value is allowed."""
OF_NONE: dict[str, Any] = {
    "non_persistent_local_ckpt_dir": "/local",
    "monitor_process_logdir": "/logs",
    "active_world_size": 4,
}


TASKS = ("train.py", "other.py")


def as_options(_: Any) -> list[str]:
    return ["--as-option"]


def other_than(field: dataclasses.Field[Any]) -> Any:
    if field.name in OTHER:
        return OTHER[field.name]
    if field.name == "script_args_converter_fn":
        return as_options
    if field.name == "overrides":
        return None if field.default else "megatron_bridge"
    if field.default is None:
        return OF_NONE.get(field.name, 7)
    if isinstance(field.default, bool):
        return not field.default
    return field.default / 2 if isinstance(field.default, float) and field.default else field.default + 1


FIELDS = [(plugin, field) for plugin in PLUGINS for field in dataclasses.fields(plugin) if field.init]
each_field = pytest.mark.parametrize(
    ("plugin", "field"), FIELDS, ids=lambda each: getattr(each, "name", "") or f"{each.__module__}.{each.__name__}"
)
NEEDING = [(plugin, name, *need) for plugin, needs in NEEDS.items() for name, need in needs.items()]


def make_group(root: Path) -> run.SlurmExecutor:
    executor = make(root, nodes=4, container_image="image")
    executor.run_as_group = True
    return executor


def rendered(plugin: Any, root: Path) -> list[str]:
    """The node script, what it reads, the batch script's part, its options, and the arguments of the task."""
    executor, tasks = make_group(root), [run.Script(name, entrypoint="python") for name in TASKS]
    for task in tasks:
        plugin.setup(task, executor)
    executor.create_job_dir()
    nodes = [executor.launcher.transform(["python", *task.to_command()]) for task in tasks]
    files = sorted((Path(executor.job_dir) / "nrp").glob("*"))
    texts = [path.read_text() for path in files if path.suffix != ".zip"]
    options = (executor.signal, executor.srun_args, executor.additional_parameters, executor.env_vars)
    rest = (executor.setup_lines, executor.monitor_group_job_wait_time, executor.container_env)
    return [*map(repr, nodes), *texts, repr(options), repr(rest), repr([task.args for task in tasks])]


@pytest.fixture(autouse=True)
def no_zip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of a plugin goes into it, and writing it takes time."""
    monkeypatch.setattr(node_launcher, "write_runtime_zip", lambda path: None)


@each_field
def test_a_field_changes_what_the_job_gets(plugin: type, field: dataclasses.Field[Any], tmp_path: Path) -> None:
    usual, changed = (rendered(plugin(**values), tmp_path) for values in ({}, {field.name: other_than(field)}))
    assert usual[0] != "None", "the task that trains gets the node script"
    assert changed != usual


@pytest.mark.parametrize(("plugin", "name", "other", "needed"), NEEDING)
def test_a_field_that_does_nothing_alone_says_what_it_needs(
    plugin: type, name: str, other: str, needed: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fields = {field.name: field for field in dataclasses.fields(plugin)}
    missing = fields[other].default if fields[other].default != needed else other_than(fields[other])
    values = {name: other_than(fields[name]), other: missing}
    task = run.Script("train.py", entrypoint="python")
    with pytest.raises(UnsupportedError, match=rf"{name}=.*has no effect without {other}=.*Set {other}, or leave"):
        plugin(**values, strict=True).plan(task, make(tmp_path))
    plugin(**values).setup(task, make(tmp_path))
    assert f"Set {other}, or leave {name} at its default" in caplog.text
    caplog.clear()
    plugin(**{**values, other: needed}, strict=True).setup(task, make(tmp_path))
    assert "has no effect" not in caplog.text
