"""The seven pitfalls of Megatron-Bridge's guide: each is caught, with the words of the README's table."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nemo_run as run
import pytest

from nemo_resiliency_plugins import (
    CheckpointConfig,
    CheckpointPlugin,
    ConfigError,
    ConflictError,
    FaultToleranceConfig,
    FaultTolerancePlugin,
    InProcessRestartConfig,
    InProcessRestartPlugin,
    NotWorkingError,
    PreemptionPlugin,
    RerunStateMachinePlugin,
    StragglerPlugin,
    UnsupportedError,
    runtime,
)
from nemo_resiliency_plugins.runtime.in_process.checks import check_place
from tests.plugins.slurm import make, told

README = (Path(__file__).parents[2] / "README.md").read_text()


def said(pitfall: str) -> str:
    """What the README says is said, as a pattern."""
    [section] = re.findall(r"^## Pitfalls, .*?^## ", README, flags=re.MULTILINE | re.DOTALL)
    [text] = [
        row[2] for row in re.findall(r"^\| (.*?) \| (.*?) \| \"(.*)\" \|$", section, re.MULTILINE) if pitfall in row[0]
    ]
    return re.escape(str(text))


def script(*arguments: str) -> run.Script:
    return run.Script("train.py", entrypoint="python", args=list(arguments))


def test_torchrun_under_fault_tolerance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = make(tmp_path, launcher="torchrun")
    FaultTolerancePlugin().setup(script(), executor)
    assert told(executor)["node"]["kind"] == "ft"
    monkeypatch.setenv("RANK", "0")
    monkeypatch.delenv("FT_RANK_MONITOR_IPC_SOCKET", raising=False)
    session = runtime.session(FaultToleranceConfig(enable_ft_package=True), strict=True)
    with pytest.raises(NotWorkingError, match=f"{said('torchrun')}.*Start the ranks with ft_launcher"), session:
        pass


@pytest.mark.parametrize("kind", [CheckpointPlugin, CheckpointConfig])
def test_an_asynchronous_save_of_another_format(kind: type) -> None:
    with pytest.raises(ConfigError, match=f'{said("async_save")}.*Set ckpt_format="torch_dist"'):
        kind(async_save=True, ckpt_format="zarr")


@pytest.mark.parametrize(
    "plugin", [FaultTolerancePlugin(), PreemptionPlugin()], ids=lambda plugin: type(plugin).__name__
)
def test_in_process_restart_of_megatron_bridge(tmp_path: Path, plugin: Any) -> None:
    with pytest.raises(ConflictError, match=f"{said('in-process')}.*use InProcessRestartPlugin"):
        plugin.setup(script("++inprocess_restart.enabled=True"), make(tmp_path))
    plugin.setup(script("inprocess_restart.enabled=false"), make(tmp_path))


def test_in_process_restart_where_it_cannot_work(
    tmp_path: Path, executor: run.LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConflictError, match=r"Leave executor\.launcher unset"):
        InProcessRestartPlugin().setup(script(), make(tmp_path, launcher="torchrun"))
    with pytest.raises(UnsupportedError, match=r"run\.SlurmExecutor is"):
        InProcessRestartPlugin().setup(script(), executor)
    with pytest.raises(UnsupportedError, match="under ft_launcher: both restart the ranks"):
        check_place(InProcessRestartConfig(), {"FT_RANK_MONITOR_IPC_SOCKET": "/socket"})


def test_two_straggler_detectors(tmp_path: Path) -> None:
    with pytest.raises(ConflictError, match=f"{said('detectors')}.*Remove the argument"):
        StragglerPlugin().setup(script("straggler.log_straggler=true"), make(tmp_path))


def test_a_stop_that_is_expected_and_not_asked_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    StragglerPlugin(max_node_exclusions=1).setup(script(), make(tmp_path))
    assert re.search(f"max_node_exclusions=1 {said('stop_if_detected')}. Set stop_if_detected", caplog.text)
    with pytest.raises(UnsupportedError, match=said("stop_if_detected")):
        StragglerPlugin(max_node_exclusions=1, strict=True).setup(script(), make(tmp_path))
    caplog.clear()
    StragglerPlugin(max_node_exclusions=1, stop_if_detected=True).setup(script(), make(tmp_path))
    assert not caplog.text


def test_a_watchdog_within_the_hard_timeout() -> None:
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "n1", "MASTER_PORT": "1"}
    with pytest.raises(ConfigError, match=f"{said('watchdog')}.*Export a greater number"):
        check_place(InProcessRestartConfig(), {**place, "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "90"})
    check_place(InProcessRestartConfig(), {**place, "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "91"})


def test_the_alpha_state_of_megatron_bridges_re_runs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    RerunStateMachinePlugin(overrides="megatron_bridge").setup(script(), make(tmp_path))
    assert re.search(f"{said('re-run')}.*session.checked", caplog.text)
    caplog.clear()
    RerunStateMachinePlugin().setup(script(), make(tmp_path))
    RerunStateMachinePlugin(overrides="megatron_bridge", rerun_mode="disabled").setup(script(), make(tmp_path))
    assert not caplog.text
