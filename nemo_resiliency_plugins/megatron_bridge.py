"""In the place of ``megatron.bridge.recipes.run_plugins``: a launch script switches by its import line.

The fault-tolerance and preemption plugins have the names, parameters, defaults and overrides of Megatron-Bridge (0.3.0
and 0.3.1) and work as those of this package do. Any other name is Megatron-Bridge's own, where that is installed.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterator
from typing import Any

from nemo_resiliency_plugins.plugins import fault_tolerance, preemption
from nemo_resiliency_plugins.plugins.edits import Edit
from nemo_resiliency_plugins.plugins.script_args import (
    MEGATRON_BRIDGE,
    FaultTolerancePluginScriptArgs,
    PreemptionPluginScriptArgs,
)

UPSTREAM = "megatron.bridge.recipes.run_plugins"

__all__ = [
    "FaultTolerancePlugin",
    "FaultTolerancePluginScriptArgs",
    "PreemptionPlugin",
    "PreemptionPluginScriptArgs",
]


@dataclasses.dataclass(kw_only=True)
class FaultTolerancePlugin(fault_tolerance.FaultTolerancePlugin):
    """As :class:`nemo_resiliency_plugins.FaultTolerancePlugin`; tells the script by overrides unless told otherwise."""

    overrides: str | None = MEGATRON_BRIDGE


@dataclasses.dataclass(kw_only=True)
class PreemptionPlugin(preemption.PreemptionPlugin):
    """As :class:`nemo_resiliency_plugins.PreemptionPlugin`; tells the script by overrides unless told otherwise.

    With ``enable_exit_handler=False`` the script is told nothing, as Megatron-Bridge has it.
    """

    overrides: str | None = MEGATRON_BRIDGE

    def _script_edits(self, task: Any) -> Iterator[Edit]:
        return super()._script_edits(task) if self.enable_exit_handler else iter(())


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(UPSTREAM), name)
    except (ImportError, AttributeError) as error:
        raise ImportError(f"{name} is none of {', '.join(__all__)}, and {UPSTREAM} has it not: {error}") from error
