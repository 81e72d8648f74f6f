"""The configuration of the runtime, as users build it in a script and as plugins send it."""

from nemo_resiliency_plugins.config.checkpoint import CheckpointConfig
from nemo_resiliency_plugins.config.fault_script import Fault, FaultScript
from nemo_resiliency_plugins.config.fault_tolerance import FaultToleranceConfig
from nemo_resiliency_plugins.config.inprocess import InProcessRestartConfig
from nemo_resiliency_plugins.config.preemption import PreemptionConfig
from nemo_resiliency_plugins.config.rerun import RerunStateMachineConfig
from nemo_resiliency_plugins.config.straggler import NVRxStragglerDetectionConfig

__all__ = [
    "CheckpointConfig",
    "Fault",
    "FaultScript",
    "FaultToleranceConfig",
    "InProcessRestartConfig",
    "NVRxStragglerDetectionConfig",
    "PreemptionConfig",
    "RerunStateMachineConfig",
]
