"""The configuration that holds, field by field: variable, then file, then the script's, then the default."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from nemo_resiliency_plugins.config import (
    CheckpointConfig,
    FaultToleranceConfig,
    NVRxStragglerDetectionConfig,
    PreemptionConfig,
    RerunStateMachineConfig,
)
from nemo_resiliency_plugins.config.rules import changed_fields, field_names
from nemo_resiliency_plugins.contract import ENV_CONFIG, ENV_STRICT, overrides_from_env, read_config_file, variable
from nemo_resiliency_plugins.errors import ConfigError

Config = TypeVar("Config")
Given = (
    FaultToleranceConfig | PreemptionConfig | CheckpointConfig | NVRxStragglerDetectionConfig | RerunStateMachineConfig
)
KINDS = (
    FaultToleranceConfig,
    PreemptionConfig,
    CheckpointConfig,
    NVRxStragglerDetectionConfig,
    RerunStateMachineConfig,
)


@dataclasses.dataclass(frozen=True)
class Configs:
    """Of each kind the one that holds."""

    fault_tolerance: FaultToleranceConfig
    preemption: PreemptionConfig
    checkpoint: CheckpointConfig
    straggler: NVRxStragglerDetectionConfig
    rerun: RerunStateMachineConfig

    def __str__(self) -> str:
        return ", ".join(str(getattr(self, field.name)) for field in dataclasses.fields(self))


def resolve_all(given: Given | Sequence[Given] | None, env: Mapping[str, str]) -> Configs:
    """Sort what a session was given by kind, and :func:`resolve` each.

    Raises:
        ConfigError: something else was given, or two of one kind; and what :func:`resolve` raises.
    """
    configs = given if isinstance(given, (list, tuple)) else [] if given is None else [given]
    by_kind: dict[type, Any] = {}
    for config in configs:
        if type(config) not in KINDS:
            rule = f"must be {' or '.join(kind.__name__ for kind in KINDS)}, a list of them, or None"
            raise ConfigError("session.config", config, rule, "Build one.")
        if type(config) in by_kind:
            raise ConfigError("session.config", config, "is the second of its kind", "Merge the two.")
        by_kind[type(config)] = config
    return Configs(*(resolve(kind, by_kind.get(kind), env) for kind in KINDS))  # in the order of the fields


def resolve(kind: type[Config], given: Config | None, env: Mapping[str, str]) -> Config:
    """Merge the sources into one validated config of type ``kind``.

    Raises:
        ConfigError: a variable or file names a field that ``kind`` lacks, or a value breaks a rule.
    """
    plugin: str = kind.PLUGIN  # type: ignore[attr-defined]
    file = read_config_file(Path(env[ENV_CONFIG])).get(plugin, {}) if env.get(ENV_CONFIG) else {}
    variables = overrides_from_env(plugin, env)
    _check_names(kind, {variable(plugin, name): name for name in variables})
    _check_names(kind, {f"{ENV_CONFIG}:{plugin}.{name}": name for name in file})
    values: dict[str, Any] = changed_fields(given) if given is not None else {}
    return kind(**{**values, **file, **variables})


def _check_names(kind: type, sources: Mapping[str, str]) -> None:
    known = field_names(kind)
    for source, name in sources.items():
        if name not in known:
            raise ConfigError(source, name, f"{kind.__name__} has no such field", f"Fields: {', '.join(known)}.")


def is_strict(env: Mapping[str, str]) -> bool:
    """Whether ``NRP_STRICT`` asks for errors instead of warnings.

    Raises:
        ConfigError: it is neither true nor false.
    """
    text = env.get(ENV_STRICT, "false").lower()
    if text not in ("true", "false", "1", "0"):
        raise ConfigError(ENV_STRICT, text, "must be true or false", "Set it to one of them.")
    return text in ("true", "1")
