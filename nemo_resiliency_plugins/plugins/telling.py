"""Telling the job about a plugin where no node launcher writes a file: by variables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nemo_resiliency_plugins.contract import ENV_STRICT, encode_value, variable
from nemo_resiliency_plugins.plugins.edits import Edit, SetEnv


def by_variables(owner: str, config: str, fields: Mapping[str, Any], *, strict: bool) -> Iterator[Edit]:
    """A variable for each of ``fields`` of the plugin's ``config`` in the job."""
    for field, value in fields.items():
        yield SetEnv(owner, variable(config, field), encode_value(value))
    if strict:
        yield SetEnv(owner, ENV_STRICT, "true")
