"""Telling the job about a plugin where no node launcher writes a file: by variables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from nemo_resiliency_plugins.config.rules import defaults
from nemo_resiliency_plugins.contract import ENV_STRICT, encode_value, variable
from nemo_resiliency_plugins.errors import UnsupportedError
from nemo_resiliency_plugins.plugins.edits import Edit, Note, SetEnv


def by_variables(owner: str, config: str, fields: Mapping[str, Any], *, strict: bool) -> Iterator[Edit]:
    """A variable for each of ``fields`` of the plugin's ``config`` in the job."""
    for field, value in fields.items():
        yield SetEnv(owner, variable(config, field), encode_value(value))
    if strict:
        yield SetEnv(owner, ENV_STRICT, "true")


def without_effect(owner: str, plugin: Any, names: Iterable[str]) -> Iterator[Edit]:
    """Notes on the fields that do nothing on LocalExecutor, aloud where one was chosen.

    Raises:
        UnsupportedError: one was chosen, and the plugin is strict.
    """
    usual = defaults(plugin)
    for name in names:
        value = getattr(plugin, name)
        text = f"{name} has no effect: LocalExecutor starts a job once, on one machine, by ft_launcher itself"
        asked = value != usual[name]
        if asked and plugin.strict:
            raise UnsupportedError(f"{owner}.{name}", value, text, "Leave it at its default.")
        yield Note(owner, text, warn=asked)


def without_the_other(owner: str, plugin: Any, needs: Mapping[str, tuple[str, Any]]) -> Iterator[Edit]:
    """Notes, aloud, on fields that were chosen and do nothing because of another field.

    Args:
        needs: by field, which other field must have which value for it to do something.

    Raises:
        UnsupportedError: there is one, and the plugin is strict.
    """
    usual = defaults(plugin)
    for name, (other, needed) in needs.items():
        value = getattr(plugin, name)
        if value == usual[name] or getattr(plugin, other) == needed:
            continue
        rule, remedy = f"has no effect without {other}={needed!r}", f"Set {other}, or leave {name} at its default."
        if plugin.strict:
            raise UnsupportedError(f"{owner}.{name}", value, rule, remedy)
        yield Note(owner, f"{name}={value!r} {rule}. {remedy}", warn=True)
