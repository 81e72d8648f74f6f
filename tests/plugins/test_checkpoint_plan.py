"""CheckpointPlugin: what it plans and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nemo_run as run
import pytest

from nemo_resiliency_plugins import CheckpointPlugin, ConfigError
from tests.plugins.slurm import make, told

LOCAL = {"non_persistent_local_ckpt_dir": "/scratch/local", "non_persistent_save_interval": 10}


def test_the_job_is_told_what_was_chosen(task: run.Script, tmp_path: Path) -> None:
    executor = make(tmp_path)
    CheckpointPlugin(async_save=True, **LOCAL).setup(task, executor)
    assert told(executor)["checkpoint"] == {"async_save": True, **LOCAL}
    assert told(executor)["node"]["kind"] == "rank"


def test_on_one_machine_it_is_told_by_variables(task: run.Script, executor: run.LocalExecutor) -> None:
    CheckpointPlugin(async_save=True, drain_timeout_s=60).setup(task, executor)
    assert executor.env_vars == {"NRP_CHECKPOINT__ASYNC_SAVE": "true", "NRP_CHECKPOINT__DRAIN_TIMEOUT_S": "60"}


def test_scripts_of_megatron_bridge_are_told_by_overrides(task: run.Script, executor: run.LocalExecutor) -> None:
    CheckpointPlugin(async_save=True, overrides="megatron_bridge").setup(task, executor)
    assert task.args[-2:] == ["checkpoint.async_save=true", "checkpoint.ckpt_format=torch_dist"]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"async_save": True, "ckpt_format": "torch"}, r"CheckpointPlugin.ckpt_format='torch': has no async_save"),
        ({"tolerated_save_failures": -1}, r"CheckpointPlugin.tolerated_save_failures=-1"),
        ({"drain_timeout_s": 0}, r"CheckpointPlugin.drain_timeout_s=0"),
        ({"overrides": "hydra"}, r"CheckpointPlugin.overrides='hydra'"),
        ({"strict": "yes"}, r"CheckpointPlugin.strict='yes'"),
    ],
)
def test_a_bad_value_is_refused_at_construction(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        CheckpointPlugin(**fields)


@pytest.mark.parametrize(("given", "missing"), [(name, other) for name in LOCAL for other in LOCAL if name != other])
def test_half_a_local_tier_is_said(
    given: str, missing: str, task: run.Script, executor: run.LocalExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    CheckpointPlugin(**{given: LOCAL[given]}).setup(task, executor)
    assert f"no local tier unless the script sets {missing}" in caplog.text


def test_an_algorithm_for_no_local_tier_is_said(
    task: run.Script, executor: run.LocalExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    CheckpointPlugin(non_persistent_local_ckpt_algo="atomic").setup(task, executor)
    assert "no effect unless the script sets non_persistent_local_ckpt_dir" in caplog.text
