"""The job side: what a training script imports. Importing it loads neither nemo_run nor torch.

Node scripts, launchers and ranks run modules of this package before any script does, so that a name loads its module
when it is first used.

A training script opens one session, and everything else hangs on that object::

    with runtime.session() as s:
        start = s.attach({"model": model, "optimizer": optimizer}, directory="checkpoints", every=100)
        for step in s.steps(start, 1000):
            loss = train(step)
            s.observe(loss)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nemo_resiliency_plugins.config import (
        CheckpointConfig,
        FaultToleranceConfig,
        InProcessRestartConfig,
        NVRxStragglerDetectionConfig,
        PreemptionConfig,
        RerunStateMachineConfig,
    )
    from nemo_resiliency_plugins.runtime.checkpoint.plain import Checkpoints
    from nemo_resiliency_plugins.runtime.in_process.entry import inprocess
    from nemo_resiliency_plugins.runtime.sessions import Session, session

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
_HOMES = {
    "Checkpoints": "nemo_resiliency_plugins.runtime.checkpoint.plain",
    "Session": "nemo_resiliency_plugins.runtime.sessions",
    "inprocess": "nemo_resiliency_plugins.runtime.in_process.entry",
    "session": "nemo_resiliency_plugins.runtime.sessions",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES.get(name, "nemo_resiliency_plugins.config")), name)


def __dir__() -> list[str]:
    return __all__
