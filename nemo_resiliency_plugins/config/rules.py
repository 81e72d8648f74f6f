"""What a value may be, and the one error for a value that breaks its rule."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from nemo_resiliency_plugins.errors import ConfigError

Rule = tuple[Callable[[Any], bool], str, str]


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value)


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_positive(value: Any) -> bool:
    return is_number(value) and 0 < value < math.inf


A_SWITCH: Rule = (lambda value: isinstance(value, bool), "must be True or False", "Give a bool.")
A_COUNT: Rule = (is_count, "must be a whole number, 0 or more", "Give an int such as 0 or 3.")
POSITIVE: Rule = (is_positive, "must be a finite number above 0", "Give a positive number.")
NOT_NEGATIVE: Rule = (
    lambda value: is_number(value) and 0 <= value < math.inf,
    "must be a finite number, 0 or more",
    "Give a number.",
)
AT_LEAST_ONE: Rule = (
    lambda value: is_number(value) and 1 <= value < math.inf,
    "must be a finite number, 1 or more",
    "Give such a number.",
)
A_STEP: Rule = (lambda value: is_count(value) and value > 0, "must be a whole number, 1 or more", "Give an int.")
A_PATH: Rule = (lambda value: isinstance(value, str) and value != "", "must be a path", 'Such as "/tmp/local".')


def optional(rule: Rule) -> Rule:
    accepts, text, remedy = rule
    return (lambda value: value is None or accepts(value), f"{text}, or None", remedy)


def one_of(*choices: Any) -> Rule:
    text = ", ".join(repr(choice) for choice in choices)
    return (lambda value: value in choices, f"must be one of {text}", f"Choose one of {text}.")


def validate(owner: str, config: Any, rules: dict[str, Rule]) -> None:
    """Check each field of ``config`` that ``rules`` names.

    Raises:
        ConfigError: for the first value that breaks its rule.
    """
    for name, (accepts, rule, remedy) in rules.items():
        value = getattr(config, name)
        if not accepts(value):
            raise ConfigError(f"{owner}.{name}", value, rule, remedy)


def field_names(config: type) -> list[str]:
    return [field.name for field in dataclasses.fields(config)]


def changed_fields(config: Any) -> dict[str, Any]:
    """The fields of ``config`` that differ from the defaults of its class."""
    return {name: getattr(config, name) for name, value in defaults(config).items() if getattr(config, name) != value}


def defaults(kind: Any) -> dict[str, Any]:
    """The default of each field of a dataclass that has one, or of an instance."""
    return {field.name: default_of(field) for field in dataclasses.fields(kind)}


def default_of(field: dataclasses.Field[Any]) -> Any:
    made = field.default_factory
    return field.default if made is dataclasses.MISSING else made()
