"""The plugin sets: what is on in each, and that it survives NeMo-Run's serialisation and its checks."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fiddle as fdl
import nemo_run as run
import pytest
from nemo_run.core.serialization.zlib_json import ZlibJSONSerializer

from nemo_resiliency_plugins import ConfigError, FaultTolerancePlugin, PreemptionPlugin, RerunStateMachinePlugin
from nemo_resiliency_plugins.recipes.factories import PLUGIN_SETS
from nemo_resiliency_plugins.recipes.plugin_sets import (
    fast_recovery,
    fault_drill,
    in_process,
    preemptible,
    production,
    with_fields,
)
from tests.plugins.slurm import make, policy, told

each_set = pytest.mark.parametrize("plugin_set", PLUGIN_SETS, ids=lambda plugin_set: plugin_set.__name__)
LOCAL_TIER = {"non_persistent_local_ckpt_dir": "/scratch", "non_persistent_save_interval": 10}


def changes(plugins: list[Any], base: list[Any]) -> dict[str, dict[str, Any]]:
    """By plugin, the fields that differ from those in ``base``."""
    found = {}
    for plugin, other in zip(plugins, base, strict=True):
        names = [field.name for field in dataclasses.fields(plugin)]
        differing = {name: getattr(plugin, name) for name in names if getattr(plugin, name) != getattr(other, name)}
        found.update({type(plugin).__name__: differing} if differing else {})
    return found


def defaults(plugins: list[Any]) -> list[Any]:
    return [type(plugin)() for plugin in plugins]


def test_production_switches_everything_on_that_costs_nothing_in_good_times() -> None:
    assert changes(production("/scratch", 10), defaults(production())) == {
        "PreemptionPlugin": {"preempt_time": 120},
        "CheckpointPlugin": {"async_save": True, **LOCAL_TIER},
        "StragglerPlugin": {"stop_if_detected": True, "reports_to_confirm": 3},
    }
    assert production()[0].calc_ft_timeouts


@pytest.mark.parametrize(
    ("made", "differs"),
    [
        (
            preemptible(grace_period_s=30),
            {
                "FaultTolerancePlugin": {"max_job_attempts": 100},
                "PreemptionPlugin": {"grace_period_s": 30, "max_job_attempts": 100},
                "StragglerPlugin": {"stop_if_detected": False},
            },
        ),
        (
            fast_recovery("/scratch"),
            {
                "FaultTolerancePlugin": {
                    "initial_rank_heartbeat_timeout": 600,
                    "num_in_job_restarts": 10,
                    "rank_heartbeat_timeout": 60,
                    "timeout_floor_s": 10,
                    "workers_stop_timeout": 1,
                    "workload_check_interval": 0.25,
                },
                "CheckpointPlugin": LOCAL_TIER,
            },
        ),
        (fault_drill("kill@0:3,hang@1:9"), {"FaultTolerancePlugin": {"fault_script": "kill@0:3,hang@1:9"}}),
    ],
    ids=["preemptible", "fast_recovery", "fault_drill"],
)
def test_the_other_sets_are_production_but_for(made: list[Any], differs: dict[str, Any]) -> None:
    assert changes(made, production()) == differs


def test_in_process_restart_takes_the_place_of_the_launchers_restarts() -> None:
    first, *others = in_process(active_world_size=4)
    assert first.active_world_size == 4
    assert others == production()[1:]


@each_set
def test_it_survives_nemo_runs_serialisation(plugin_set: Callable[[], list[Any]]) -> None:
    serializer = ZlibJSONSerializer()
    plugins = plugin_set()
    back = [fdl.build(serializer.deserialize(serializer.serialize(plugin.to_config()))) for plugin in plugins]
    assert back == plugins


@each_set
def test_its_plugins_fit_together_on_slurm(
    task: run.Script, tmp_path: Path, plugin_set: Callable[[], list[Any]]
) -> None:
    jobs = []
    for order in (plugin_set(), plugin_set()[::-1]):
        executor, own = make(tmp_path), copy.deepcopy(task)
        for plugin in order:
            plugin.setup(own, executor)
        jobs.append((told(executor), policy(executor), executor.signal, executor.retries, own.args))
    assert jobs[0] == jobs[1]
    assert {"preemption", "checkpoint", "straggler"} <= set(jobs[0][0])


def test_fields_of_one_plugin_can_be_changed_and_the_list_stays() -> None:
    plugins = production()
    changed = with_fields(plugins, PreemptionPlugin, preempt_time=300)
    assert changes(changed, plugins) == {"PreemptionPlugin": {"preempt_time": 300}}
    assert plugins == production()


def test_a_change_without_effect_is_refused() -> None:
    with pytest.raises(ConfigError, match="hold no RerunStateMachinePlugin"):
        with_fields(production(), RerunStateMachinePlugin, tolerance=0.1)
    with pytest.raises(ConfigError, match=r"rank_heartbeat_timeout=-1"):
        with_fields(production(), FaultTolerancePlugin, rank_heartbeat_timeout=-1)
    with pytest.raises(TypeError, match="heartbeat"):
        with_fields(production(), FaultTolerancePlugin, heartbeat=1)


def test_a_set_without_a_directory_for_its_local_tier_says_so(
    task: run.Script, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for plugin in fast_recovery():
        plugin.setup(task, make(tmp_path))
    assert "no local tier unless the script sets non_persistent_local_ckpt_dir" in caplog.text
