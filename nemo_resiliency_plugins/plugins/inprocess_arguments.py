"""What the arguments of a training script say about Megatron-Bridge's own in-process restart."""

from __future__ import annotations

from collections.abc import Sequence

from nemo_resiliency_plugins.errors import ConflictError
from nemo_resiliency_plugins.plugins.given_arguments import assignments, read_as

KEY = "inprocess_restart.enabled"


def refuse_megatrons_own(owner: str, arguments: Sequence[str]) -> None:
    """It works neither under a launcher that restarts ranks nor beside the exit on a signal.

    Raises:
        ConflictError: the arguments switch it on.
    """
    value, argument = assignments(arguments).get(KEY, ("false", ""))
    if read_as(bool, value) is not False:
        rule = f"Megatron-Bridge's in-process restart works neither under NeMo-Run's launchers nor beside {owner}"
        remedy = f"Leave {owner} out and use InProcessRestartPlugin, with which srun starts the ranks"
        raise ConflictError("task.args", argument, rule, remedy)
