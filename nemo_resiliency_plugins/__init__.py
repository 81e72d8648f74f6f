"""Resiliency plugins for NeMo-Run. Importing this package loads neither nemo_run nor torch."""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "FaultTolerancePlugin": "nemo_resiliency_plugins.plugins.fault_tolerance",
    "CheckpointPlugin": "nemo_resiliency_plugins.plugins.checkpoint",
    "InProcessRestartPlugin": "nemo_resiliency_plugins.plugins.inprocess",
    "PreemptionPlugin": "nemo_resiliency_plugins.plugins.preemption",
    "RerunStateMachinePlugin": "nemo_resiliency_plugins.plugins.rerun",
    "StragglerPlugin": "nemo_resiliency_plugins.plugins.straggler",
    "CheckpointConfig": "nemo_resiliency_plugins.config",
    "FaultScript": "nemo_resiliency_plugins.config",
    "FaultToleranceConfig": "nemo_resiliency_plugins.config",
    "InProcessRestartConfig": "nemo_resiliency_plugins.config",
    "NVRxStragglerDetectionConfig": "nemo_resiliency_plugins.config",
    "PreemptionConfig": "nemo_resiliency_plugins.config",
    "RerunStateMachineConfig": "nemo_resiliency_plugins.config",
    "CheckpointError": "nemo_resiliency_plugins.errors",
    "ConfigError": "nemo_resiliency_plugins.errors",
    "ConflictError": "nemo_resiliency_plugins.errors",
    "NotWorkingError": "nemo_resiliency_plugins.errors",
    "ResiliencyError": "nemo_resiliency_plugins.errors",
    "UnsupportedError": "nemo_resiliency_plugins.errors",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
