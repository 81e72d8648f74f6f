"""Nothing is silently off: what was asked for and cannot work here is said once, on rank 0, with the remedy."""

from __future__ import annotations

from nemo_resiliency_plugins.errors import NotWorkingError
from nemo_resiliency_plugins.runtime.events import EventLog
from nemo_resiliency_plugins.runtime.log import line, logger


def report(what: str, reason: str, remedy: str, *, feature: str, rank: int, events: EventLog, strict: bool) -> None:
    """Raises NotWorkingError under ``strict``."""
    text = f"{what}: {reason}. {remedy}."
    events.emit("not_working", feature=feature, reason=reason)
    if strict:
        raise NotWorkingError(text)
    if rank == 0:
        logger().warning(line(0, text))
