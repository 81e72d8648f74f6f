"""What the arguments of a training script say about stragglers already, in the dialects of Megatron."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nemo_resiliency_plugins.errors import ConflictError

SECTION = "nvrx_straggler"
OLDER_KEY, OLDER_FLAG = "straggler.log_straggler", "--log-straggler"
"""Megatron's older detector: a field of Megatron-Bridge's configuration, a flag of Megatron-LM."""
TRUE, FALSE = ("true", "yes", "on", "y"), ("false", "no", "off", "n")
"""What OmegaConf takes for a bool, in any case, besides whole numbers."""


def refuse_older_detector(owner: str, arguments: Sequence[str]) -> None:
    """Both detectors must never run together.

    Raises:
        ConflictError: the arguments switch on Megatron's older one.
    """
    for argument in _older(arguments):
        rule = f"Megatron's older straggler detector must not run beside the one of NVRx, which {owner} switches on"
        raise ConflictError("task.args", argument, rule, f"Remove the argument, or {owner}")


def given_fields(owner: str, arguments: Sequence[str], fields: Mapping[str, Any]) -> set[str]:
    """The fields that the arguments set already, to the plugin's own values.

    Raises:
        ConflictError: an argument says something else than ``fields``.
    """
    given = {}
    for key, (value, argument) in _assignments(arguments).items():
        section, _, name = key.partition(".")
        if section == SECTION and name in fields:
            given[name] = argument
            if _read(value, type(fields[name])) != fields[name]:
                rule = f"{owner} wants {name}={fields[name]}"
                raise ConflictError("task.args", argument, rule, "Give both the same value, or remove the argument")
    return set(given)


def _older(arguments: Sequence[str]) -> list[str]:
    """The arguments that switch it on; of several that set the key, the last one counts."""
    flags = [argument for argument in arguments if argument.replace("_", "-") == OLDER_FLAG]
    value, argument = _assignments(arguments).get(OLDER_KEY, ("false", ""))
    return [*flags, argument] if _read(value, bool) is not False else flags


def _assignments(arguments: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Value and argument of each hydra override, by its key without the prefix ``+`` or ``++``."""
    overrides = (argument for argument in arguments if "=" in argument and not argument.startswith("-"))
    split = ((*argument.split("=", 1), argument) for argument in overrides)
    return {key.lstrip("+"): (value.strip().strip("'\""), argument) for key, value, argument in split}


def _read(text: str, kind: type) -> Any:
    """The value as the field's type, or the text itself where it is none."""
    if kind is bool and text.lower() in (*TRUE, *FALSE):
        return text.lower() in TRUE
    try:
        return bool(int(text)) if kind is bool else float(text)
    except ValueError:
        return text
