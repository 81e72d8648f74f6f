"""The names that users may rely on."""

from __future__ import annotations

import dataclasses
import re

import pytest
from typer.testing import CliRunner

import nemo_resiliency_plugins
from nemo_resiliency_plugins import (
    CheckpointConfig,
    FaultToleranceConfig,
    FaultTolerancePlugin,
    InProcessRestartConfig,
    NVRxStragglerDetectionConfig,
    PreemptionConfig,
    PreemptionPlugin,
    RerunStateMachineConfig,
    RerunStateMachinePlugin,
    StragglerPlugin,
    runtime,
)
from nemo_resiliency_plugins.cli.main import app

PUBLIC = [
    "CheckpointConfig",
    "CheckpointError",
    "CheckpointPlugin",
    "ConfigError",
    "ConflictError",
    "FaultScript",
    "FaultToleranceConfig",
    "FaultTolerancePlugin",
    "InProcessRestartConfig",
    "InProcessRestartPlugin",
    "NVRxStragglerDetectionConfig",
    "NotWorkingError",
    "PreemptionConfig",
    "PreemptionPlugin",
    "RerunStateMachineConfig",
    "RerunStateMachinePlugin",
    "ResiliencyError",
    "StragglerPlugin",
    "UnsupportedError",
]
VERBS = ["preview", "doctor", "status", "report", "faults", "sbatch", "demo"]
SESSION = {
    "attach",
    "checked",
    "finish",
    "observe",
    "pause",
    "save",
    "section",
    "settle",
    "should_stop",
    "steps",
    "stop",
    "stop_reason",
}
STRAGGLERS = {
    "report_time_interval": 300.0,
    "calc_relative_gpu_perf": True,
    "calc_individual_gpu_perf": True,
    "num_gpu_perf_scores_to_print": 5,
    "gpu_relative_perf_threshold": 0.7,
    "gpu_individual_perf_threshold": 0.7,
    "stop_if_detected": False,
    "enable_logging": True,
    "profiling_interval": 1,
}
RERUN = {"check_for_nan_in_loss": True, "check_for_spiky_loss": False, "spiky_loss_factor": 10.0}
FEATURE_DOCUMENT = {
    FaultTolerancePlugin: {
        "enable_ft_package": True,
        "calc_ft_timeouts": True,
        "num_in_job_restarts": 3,
        "num_job_retries_on_failure": 2,
        "initial_rank_heartbeat_timeout": 1800,
        "rank_heartbeat_timeout": 300,
    },
    PreemptionPlugin: {
        "preempt_time": 60,
        "enable_exit_handler": True,
        "enable_exit_handler_for_data_loader": False,
    },
    StragglerPlugin: {"enabled": True, **STRAGGLERS},
    NVRxStragglerDetectionConfig: {"enabled": False, **STRAGGLERS},
    RerunStateMachinePlugin: {"rerun_mode": "validate_results", **RERUN},
    RerunStateMachineConfig: {"rerun_mode": "disabled", **RERUN},
    FaultToleranceConfig: {
        "enable_ft_package": False,
        "calc_ft_timeouts": False,
        "simulate_fault": False,
        "simulated_fault_type": "random",
        "simulated_fault_rank": None,
        "simulated_fault_base_delay": 0,
    },
    PreemptionConfig: {
        "exit_signal_handler": False,
        "exit_signal": "SIGTERM",
        "exit_signal_handler_for_dataloader": False,
    },
    CheckpointConfig: {
        "async_save": False,
        "ckpt_format": "torch_dist",
        "non_persistent_local_ckpt_dir": None,
        "non_persistent_local_ckpt_algo": "fully_parallel",
    },
    InProcessRestartConfig: {
        "enabled": False,
        "active_world_size": None,
        "granularity": "node",
        "max_iterations": None,
        "soft_timeout": 60.0,
        "hard_timeout": 90.0,
        "heartbeat_interval": 30.0,
        "heartbeat_timeout": 60.0,
        "barrier_timeout": 120.0,
        "completion_timeout": 120.0,
        "empty_cuda_cache": True,
        "max_rank_faults": None,
        "monitor_process_logdir": None,
    },
}


def test_the_package_exports_what_it_says() -> None:
    assert nemo_resiliency_plugins.__all__ == PUBLIC == dir(nemo_resiliency_plugins)
    assert all(getattr(nemo_resiliency_plugins, name).__name__ == name for name in PUBLIC)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'PreemptionPlugins'"):
        nemo_resiliency_plugins.PreemptionPlugins  # noqa: B018


def test_the_session_offers_what_it_says() -> None:
    session = runtime.session()
    assert {name for name in dir(session) if not name.startswith("_")} == SESSION


@pytest.mark.parametrize("kind", FEATURE_DOCUMENT, ids=lambda kind: kind.__name__)
def test_defaults_are_those_of_the_feature_document(kind: type) -> None:
    defaults = {field.name: field.default for field in dataclasses.fields(kind)}
    expected = FEATURE_DOCUMENT[kind]
    assert {name: defaults[name] for name in expected} == expected


def test_the_verbs_of_the_command_line() -> None:
    shown = CliRunner().invoke(app, ["--help"]).output
    assert re.findall(r"^  (\w+)  ", shown.partition("Commands:")[2], flags=re.MULTILINE) == VERBS
