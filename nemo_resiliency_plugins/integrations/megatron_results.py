"""What Megatron's re-run state machine knows when it ends a training: whose result it was, and what."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from typing import Any

from nemo_resiliency_plugins.contract import ENV_NODE_RUN, ExitCode, Reason
from nemo_resiliency_plugins.runtime.agreement import Ranks
from nemo_resiliency_plugins.runtime.batch import BatchNotes
from nemo_resiliency_plugins.runtime.ending import Leaving
from nemo_resiliency_plugins.runtime.events import EventLog
from nemo_resiliency_plugins.runtime.identity import Identity
from nemo_resiliency_plugins.runtime.log import line, logger

MACHINE = "megatron.core.rerun_state_machine"
REASONS = {16: Reason.RERUN_ELSEWHERE, 17: Reason.VALIDATION_FAILED}
"""By the exit codes of that machine, which all ranks end with alike."""
OUTCOMES = {Reason.RERUN_ELSEWHERE: "elsewhere", Reason.VALIDATION_FAILED: "failed"}
LIMIT = timedelta(seconds=60)
"""For the ranks to tell each other: one of them may be gone."""


def reason_of(error: BaseException | None) -> Reason | None:
    """Why the machine has ended the training, if it was the machine."""
    return REASONS.get(error.code) if isinstance(error, SystemExit) and isinstance(error.code, int) else None


def end(reason: Reason, step: int, identity: Identity, notes: BatchNotes, events: EventLog) -> None:
    """Collective. Leave a verdict that names the rank and node, and record the result.

    Where no rank knows, the exit codes of the ranks are all that there is, as without the callback.

    Raises:
        Leaving: with code 0, where a node script runs: there the verdict tells.
    """
    try:
        ranks = Ranks(timeout=LIMIT)
        found = [each for each in ranks.gather(finding(reason, identity)) if each is not None]
        if not found:
            return
        if identity.rank == 0:
            for each in found:
                events.emit("suspect_result", **each)
                logger().warning(line(0, f"Megatron's result validation: {each}"))
        whose = (found[0]["suspect_rank"], found[0]["node"])
        notes.ended(reason, step, whose)
        events.emit("results_stop", step=step, reason=reason.value, suspect_rank=whose[0], node=whose[1])
        ranks.barrier()  # a launcher ends the other ranks when the first has left
    except RuntimeError as error:
        logger().warning(line(identity.rank, f"no verdict on the suspect result, another rank is gone: {error}"))
        return
    if ENV_NODE_RUN in os.environ:
        raise Leaving(int(ExitCode.OK))


def finding(reason: Reason, identity: Identity) -> dict[str, Any] | None:
    """What this rank has rejected in the last iteration; None: nothing, or nobody can tell."""
    module = sys.modules.get(MACHINE)
    machine = module.get_rerun_state_machine() if module is not None else None
    call = getattr(machine, "failed_validation_call", None)
    if call is None or not getattr(machine, "rerun_requested", False):
        return None
    return {
        "outcome": OUTCOMES[reason],
        "step": getattr(machine, "current_iteration", None),
        "kind": str(call.caller.message),
        "suspect_rank": identity.rank,
        "node": identity.node,
        "device": getattr(machine, "suspicious_device", None),
        "values": [_plain(getattr(machine, "initial_result", None))],
    }


def _plain(value: Any) -> Any:
    """A number where it is one: results are tensors of one element as a rule."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return str(value)
