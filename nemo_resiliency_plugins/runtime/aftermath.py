"""One line for a person, when the ranks go on after a fault: what happened, where, what was done, and how soon.

The report knows the whole cost; this is the time from the end of the first rank until the state was loaded again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_resiliency_plugins.errors import is_of_a_peer
from nemo_resiliency_plugins.evidence import Hindmost, Sign, one_of
from nemo_resiliency_plugins.runtime.identity import Identity
from nemo_resiliency_plugins.runtime.log import line, logger
from nemo_resiliency_plugins.runtime.record import LastLife

if TYPE_CHECKING:
    from nemo_resiliency_plugins.runtime.agreement import Ranks

TOGETHER_S = 30.0
"""A launcher stops the other ranks within this time of a failure; what failed longer before is of an earlier start."""


def tell(identity: Identity, ranks: Ranks, last: LastLife | None, resumed: int | None) -> None:
    """Collective; told where the ranks have been started before. ``last``: how this rank's previous process ended."""
    # Each launcher of NVRx 0.4.1 counts its own restarts, so ranks of other nodes may not know of any.
    if not any(ranks.maximum([float(identity.attempt.is_repeated)])):
        if identity.rank == 0 and resumed is not None:
            logger().info(line(0, f"resumed from the checkpoint of step {resumed}"))
        return
    own = dataclasses.asdict(last.sign(identity.rank)) if last is not None else None
    found = [Sign(**each) for each in ranks.gather(own) if each is not None]
    if identity.rank == 0:
        logger().warning(line(0, in_words(found, _newest_failure(identity.directory), resumed, time.time())))


def in_words(lives: list[Sign], failure: dict[str, Any] | None, resumed: int | None, now: float) -> str:
    """The line.

    Args:
        lives: the last signs of the ranks that were killed or hung.
        failure: what the first rank that left by itself has noted.
        resumed: the step of the checkpoint that the ranks go on from.
        now: seconds since the epoch.
    """
    since, what = now, "the ranks were started before"
    first = min(lives, key=lambda each: each.ended) if lives else None
    if failure is not None and first is not None and failure["at"] < first.ended - TOGETHER_S:
        failure = None
    raised = failure is not None and not is_of_a_peer(*failure["error"].partition(": ")[::2])
    hindmost = Hindmost(lives)
    if failure is not None and (raised or first is None):
        since, what = failure["at"], f"rank {failure['rank']} on {failure['node']} failed: {failure['error'][:200]}"
    elif first is not None:
        since, what = first.ended, f"{one_of([(first.rank, first.node)])} was killed"
        if hindmost.hung is not None:
            since, what = hindmost.hung.ended, f"{one_of(hindmost.places)} hung in {hindmost.section}"
    again = "" if first is None or resumed is None else _again(max(each.step for each in lives), resumed)
    gone_on = f"all ranks go on from {'the begin' if resumed is None else f'the checkpoint of step {resumed}'}"
    return f"started again: {what}; {gone_on}, {now - since:.1f} s later{again}"


def _again(reached: int, resumed: int) -> str:
    return f", steps {resumed} to {reached} are done again" if reached > resumed else ""


def _newest_failure(directory: Path | None) -> dict[str, Any] | None:
    """Of any earlier start: the present one has not failed so far."""
    if directory is None:
        return None
    with contextlib.suppress(OSError, ValueError):
        path = max(directory.glob("failure-*.json"), key=lambda each: each.stat().st_mtime)
        return {**json.loads(path.read_text()), "at": path.stat().st_mtime}
    return None
