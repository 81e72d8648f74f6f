"""The job side: what a training script imports. Importing it loads neither nemo_run nor torch.

A training script opens one session, and everything else hangs on that object::

    with runtime.session() as s:
        start = s.attach({"model": model, "optimizer": optimizer}, directory="checkpoints", every=100)
        for step in s.steps(start, 1000):
            loss = train(step)
            s.observe(loss)
"""

from __future__ import annotations

from nemo_resiliency_plugins.config import (
    CheckpointConfig,
    FaultToleranceConfig,
    InProcessRestartConfig,
    NVRxStragglerDetectionConfig,
    PreemptionConfig,
    RerunStateMachineConfig,
)
from nemo_resiliency_plugins.runtime.checkpoint.plain import Checkpoints
from nemo_resiliency_plugins.runtime.inprocess.entry import inprocess
from nemo_resiliency_plugins.runtime.session import Session, session

__all__ = [
    "CheckpointConfig",
    "Checkpoints",
    "FaultToleranceConfig",
    "InProcessRestartConfig",
    "NVRxStragglerDetectionConfig",
    "PreemptionConfig",
    "RerunStateMachineConfig",
    "Session",
    "inprocess",
    "session",
]
