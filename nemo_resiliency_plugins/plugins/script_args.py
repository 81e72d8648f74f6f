"""Telling a training script about the plugin through its arguments, for scripts that read no configuration of ours."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from nemo_resiliency_plugins.errors import ConfigError

MEGATRON_BRIDGE = "megatron_bridge"


@dataclasses.dataclass
class FaultTolerancePluginScriptArgs:
    """What ``script_args_converter_fn`` of FaultTolerancePlugin is given."""

    enable_ft_package: bool
    calc_ft_timeouts: bool


def hydra_overrides(prefix: str, args: Any) -> list[str]:
    """``prefix.field=value`` for each field, as Megatron-Bridge's scripts take them."""
    return [f"{prefix}.{name}={str(value).lower()}" for name, value in dataclasses.asdict(args).items()]


def require_module_level(field: str, function: Callable[..., Any] | None) -> None:
    """Raises ConfigError for a function that does not survive NeMo-Run's serialisation."""
    if function is not None and (not callable(function) or "<" in getattr(function, "__qualname__", "<")):
        rule = "must be a function at the top level of a module: NeMo-Run serialises it by name"
        raise ConfigError(field, function, rule, "Move it to a module, not a lambda or a nested function.")
