"""How a job stands: in one or a few words, and whether anything more is to come."""

from __future__ import annotations

from pathlib import Path

from nemo_resiliency_plugins.report.accounting import Cause, Piece, end_of
from nemo_resiliency_plugins.report.endings import How
from nemo_resiliency_plugins.report.reading import doings, newest_policy
from nemo_resiliency_plugins.report.starts import Start

QUIET_S = 60.0
"""Without any news for so long, and without an end, nobody can say that the job runs."""
BAD = ("failed", "no news", "not started", "ended", "validation failed")
OVER = ("finished", "failed", "ended", "validation failed", "all ranks have left")
RUNNING, BETWEEN, WAITS = "running", "between two starts", "waits for its next start"
WATCHED = "running, quiet within the limits of hang detection"
FOR_GOOD = ("stop", "leave")
"""What the batch script does when there is to be no further attempt."""


def state_of(directory: Path, starts: list[Start], now: float) -> str:
    """One or a few words; see BAD and OVER."""
    if not starts:
        return "not started"
    policy, last = newest_policy(directory), starts[-1]
    if last.left in ("finished", "validation_failed"):
        return last.left.replace("_", " ")
    if policy.get("state") == "ended":
        return f"{'ended' if policy.get('action') in FOR_GOOD else WAITS}: {policy['why']}"
    if last.left:
        return f"left together: {last.left.replace('_', ' ')}"
    return _unsaid(directory, last, now)


def _unsaid(directory: Path, last: Start, now: float) -> str:
    """Where neither the ranks nor the batch script have said how it ended."""
    quiet_s = now - end_of(last)
    if last.ends.first is not None:
        return BETWEEN if last.is_there or (quiet_s < QUIET_S and not last.is_gone) else "failed"
    if last.is_gone:
        return "all ranks have left with exit code 0" if last.ends.counts[How.LEFT] else "failed"
    at_work = list(doings(directory))
    quiet_s = min(quiet_s, now - max((each.since for each in at_work), default=0.0))
    if quiet_s < QUIET_S:
        return RUNNING
    is_watched = bool(at_work) and all(each.is_within_its_limit(now) for each in at_work)
    return WATCHED if is_watched else f"no news for {quiet_s:.0f} s"


def is_for_good(state: str, starts: list[Start]) -> bool:
    """Whether it is known, not only likely, that nothing more is to come."""
    known = bool(starts) and starts[-1].is_gone
    return known or state.startswith(("finished", "ended", "validation failed"))


def since_the_last_start(state: str, starts: list[Start], now: float) -> list[Piece]:
    """The seconds for which no rank has run so far, where there is to be a next start."""
    causes = {BETWEEN: Cause.RESTART, WAITS: Cause.AWAITING}
    return [(causes[each], max(0.0, now - end_of(starts[-1]))) for each in causes if state.startswith(each)]
