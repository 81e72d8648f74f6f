"""What the arguments of a training script say about stragglers already, in the dialects of Megatron."""

from __future__ import annotations

from collections.abc import Sequence

from nemo_resiliency_plugins.errors import ConflictError
from nemo_resiliency_plugins.plugins.given_arguments import assignments, read_as

OLDER_KEY, OLDER_FLAG = "straggler.log_straggler", "--log-straggler"
"""Megatron's older detector: a field of Megatron-Bridge's configuration, a flag of Megatron-LM."""


def refuse_older_detector(owner: str, arguments: Sequence[str]) -> None:
    """Both detectors must never run together.

    Raises:
        ConflictError: the arguments switch on Megatron's older one.
    """
    for argument in _older(arguments):
        rule = f"Megatron's older straggler detector must not run beside the one of NVRx, which {owner} switches on"
        raise ConflictError("task.args", argument, rule, f"Remove the argument, or {owner}")


def _older(arguments: Sequence[str]) -> list[str]:
    """The arguments that switch it on; of several that set the key, the last one counts."""
    flags = [argument for argument in arguments if argument.replace("_", "-") == OLDER_FLAG]
    value, argument = assignments(arguments).get(OLDER_KEY, ("false", ""))
    return [*flags, argument] if read_as(bool, value) is not False else flags
