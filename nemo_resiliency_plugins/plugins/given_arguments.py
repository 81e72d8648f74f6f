"""What the arguments of a training script set already, in the dialect of hydra."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nemo_resiliency_plugins.errors import ConflictError

TRUE, FALSE = ("true", "yes", "on", "y"), ("false", "no", "off", "n")
"""What OmegaConf takes for a bool, in any case, besides whole numbers."""


def given_fields(owner: str, section: str, arguments: Sequence[str], fields: Mapping[str, Any]) -> set[str]:
    """The fields of ``section`` that the arguments set already, to the plugin's own values.

    Raises:
        ConflictError: an argument says something else than ``fields``.
    """
    given = {}
    for key, (value, argument) in assignments(arguments).items():
        of, _, name = key.partition(".")
        if of == section and name in fields:
            given[name] = argument
            if read_as(type(fields[name]), value) != fields[name]:
                rule = f"{owner} wants {name}={fields[name]}"
                raise ConflictError("task.args", argument, rule, "Give both the same value, or remove the argument")
    return set(given)


def assignments(arguments: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Value and argument of each hydra override, by its key without the prefix ``+`` or ``++``."""
    overrides = (argument for argument in arguments if "=" in argument and not argument.startswith("-"))
    split = ((*argument.split("=", 1), argument) for argument in overrides)
    return {key.lstrip("+"): (value.strip().strip("'\""), argument) for key, value, argument in split}


def read_as(kind: type, text: str) -> Any:
    """The value as the field's type, or the text itself where it is none."""
    if kind is bool and text.lower() in (*TRUE, *FALSE):
        return text.lower() in TRUE
    try:
        return text if kind is str else bool(int(text)) if kind is bool else float(text)
    except ValueError:
        return text
