"""The errors of this package. Each class knows the exit code that a process ends with because of it."""

from __future__ import annotations

import re
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


_PEER_TYPES = ("DistNetworkError", "DistStoreError", "VoteError", "ConnectionResetError", "BrokenPipeError")
_PEER_WORDS = re.compile(
    r"connection (was )?(reset|closed|refused)|broken pipe|connection timed out|gloo.*(timed? ?out|connect)"
    r"|nccl.*(remote|abort|timed? ?out|unhandled system error)|process group.*(watchdog|abort)|socket timeout"
    r"|one of them is gone",
    re.IGNORECASE,
)


def is_of_a_peer(kind: str, message: str) -> bool:
    """Whether an error tells only that another rank has gone: it follows from that one's fault.

    Args:
        kind: the name of the exception's class, as torch 2.5 to 2.13 and this package have it.
    """
    return kind in _PEER_TYPES or _PEER_WORDS.search(message) is not None
