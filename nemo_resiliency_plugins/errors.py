"""The errors of this package. Each class knows the exit code that a process ends with because of it."""

from __future__ import annotations

from typing import Any, ClassVar


class ResiliencyError(Exception):
    """Base of all errors that this package raises on purpose."""

    exit_code: ClassVar[int] = 1


class ConfigError(ResiliencyError, ValueError):
    """A value that cannot work: names the field, the value, the rule and the remedy."""

    exit_code = 2

    def __init__(self, field: str, value: Any, rule: str, remedy: str) -> None:
        super().__init__(f"{field}={value!r}: {rule}. {remedy}")
        self.field = field
        self.value = value
        self.rule = rule
        self.remedy = remedy

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.field, self.value, self.rule, self.remedy)


class ConflictError(ConfigError):
    """Two claimants want different values for one field."""


class UnsupportedError(ConfigError):
    """A task, executor or combination that this version does not handle."""


class CheckpointError(ResiliencyError):
    """A checkpoint could not be written, or something is there that cannot be resumed from."""


class NotWorkingError(ResiliencyError):
    """Under ``strict=True``: a feature that was asked for cannot work here."""
