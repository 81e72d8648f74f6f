"""The retry policy: one ordered table of rules, the first that matches decides.

The batch script runs the same table: its ``case`` statement is rendered from :data:`RULES`, so there is one policy.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator, Sequence
from typing import Any

from nemo_resiliency_plugins.contract import Reason
from nemo_resiliency_plugins.slurm.render import render

FACTS: dict[str, tuple[str, ...]] = {
    "verdict": ("none", *(reason.value for reason in Reason)),
    "code": ("0", "2", "17", "93", "126", "127", "other"),
    "job": ("running", "gone", "lost", "evicted", "timelimit"),
    "runtime": ("started", "silent"),
    "unstartable": ("yes", "no"),
    "notice": ("yes", "no"),
    "progress": ("yes", "no"),
    "failures": ("left", "spent"),
    "attempts": ("left", "spent"),
    "idle": ("left", "spent"),
    "elsewhere": ("yes", "spent", "none"),
}
"""What the batch script finds out when the step has ended, and the values that each fact can take.

``job``: Slurm has ended it for good or brings it back by itself (``gone``), after the loss of a node (``lost``); it was
preempted where Slurm does not bring it back (``evicted``); its time is up (``timelimit``). ``progress``: a newer
committed checkpoint than at the start of the attempt. ``failures`` in a row without progress, failed ``attempts`` in
all, and ``idle`` starts in a row that did not fail and made no progress that we know of, are left or spent.
``elsewhere``, for a verdict that asks for other nodes: its nodes may be excluded (``yes``), that would be more than
the bound (``spent``), or too few nodes would be left that could run the job (``none``).
"""


ELSEWHERE = f"{Reason.STRAGGLER.value}|{Reason.RERUN_ELSEWHERE.value}"


class Action(str, enum.Enum):
    """What the batch script does."""

    STOP = "stop"
    AGAIN = "again"
    REQUEUE = "requeue"
    EXCLUDE = "exclude"
    LEAVE = "leave"
    SUBMIT = "submit"


class Counts(str, enum.Enum):
    """What an ending uses up. IDLE: no failure, but no progress that we know of. ATTEMPT: one of all attempts."""

    NOTHING = "nothing"
    IDLE = "idle"
    ATTEMPT = "attempt"
    FAILURE = "failure"


@dataclasses.dataclass(frozen=True)
class Decision:
    """``code`` is the exit code of a stop, "own" for that of the failure."""

    action: Action
    counts: Counts = Counts.NOTHING
    code: str = "own"


@dataclasses.dataclass(frozen=True)
class Rule:
    """Decides when each fact in ``when`` has one of the values given there."""

    name: str
    decision: Decision
    when: tuple[tuple[str, tuple[str, ...]], ...]

    def matches(self, facts: dict[str, str]) -> bool:
        return all(facts[fact] in values for fact, values in self.when)

    @property
    def patterns(self) -> list[str]:
        """Shell patterns for a line ``verdict=none code=0 ...`` that holds all facts in their order."""
        wanted = dict(self.when)
        parts = [""]
        for fact in FACTS:
            if fact in wanted:
                parts = [f'{part}*"{fact}={value} "' for part in parts for value in wanted[fact]]
        return [f"{part}*" for part in parts]


def rule(name: str, decision: Decision, **when: str) -> Rule:
    return Rule(name, decision, tuple((fact, tuple(values.split("|"))) for fact, values in when.items()))


def counted(name: str, action: Action = Action.AGAIN, ends_with: str = "own", **when: str) -> Iterator[Rule]:
    """A failure: ``action`` while failures in a row and attempts are left, then the end."""
    yield rule(name, Decision(action, Counts.FAILURE), failures="left", attempts="left", **when)
    yield rule(f"{name}, no more left", Decision(Action.STOP, code=ends_with), **when)


def idle(name: str, action: Action, **when: str) -> Iterator[Rule]:
    """No failure, and no progress that we know of: ``action``, a bounded number of times in a row, then the end."""
    yield rule(name, Decision(action, Counts.IDLE), idle="left", **when)
    yield rule(f"{name}, no more left", Decision(Action.STOP, code="1"), **when)


RULES: tuple[Rule, ...] = (
    rule("Slurm has decided: cancelled or requeued", Decision(Action.LEAVE), job="gone"),
    rule("a node was lost, Slurm requeues", Decision(Action.LEAVE, Counts.IDLE), job="lost"),
    rule("finished", Decision(Action.STOP, code="0"), verdict="finished"),
    rule("evicted, after a checkpoint", Decision(Action.SUBMIT), job="evicted", progress="yes"),
    *idle("evicted before anything was new", Action.SUBMIT, job="evicted", verdict="preempted"),
    *idle("evicted, a script without our runtime", Action.SUBMIT, job="evicted", runtime="silent"),
    *counted("evicted, not saved", Action.SUBMIT, "1", job="evicted"),
    rule("time limit, after a checkpoint", Decision(Action.REQUEUE), job="timelimit", progress="yes"),
    *idle("time limit before anything was new", Action.REQUEUE, job="timelimit", verdict="preempted"),
    *counted("time limit", Action.REQUEUE, "1", job="timelimit"),
    rule("preempted and saved", Decision(Action.REQUEUE), verdict="preempted", progress="yes"),
    *idle("preempted before anything was new", Action.REQUEUE, verdict="preempted"),
    *counted("preempted, save failed", Action.REQUEUE, "1", verdict="preempted_unsaved"),
    rule(
        "run elsewhere",
        Decision(Action.EXCLUDE, Counts.ATTEMPT),
        verdict=ELSEWHERE,
        elsewhere="yes",
        attempts="left",
    ),
    rule("validation failed", Decision(Action.STOP, code="17"), verdict="validation_failed"),
    rule("validation failed, by its code", Decision(Action.STOP, code="17"), code="17"),
    rule("NVRx: no restart", Decision(Action.STOP), code="93"),
    rule("could not start", Decision(Action.STOP), unstartable="yes", runtime="silent"),
    rule("could not start, by its code", Decision(Action.STOP), code="2|126|127"),
    rule("ended on a notice, after a checkpoint", Decision(Action.REQUEUE), notice="yes", progress="yes"),
    *idle("a script without our runtime ended on a notice", Action.REQUEUE, notice="yes", runtime="silent"),
    *counted("ended on a notice, not saved", Action.REQUEUE, "1", notice="yes"),
    *counted("run elsewhere, but too many nodes are excluded", ends_with="1", verdict=ELSEWHERE, elsewhere="spent"),
    *counted("run elsewhere, but too few nodes would be left", ends_with="1", verdict=ELSEWHERE, elsewhere="none"),
    rule("run elsewhere, no more left", Decision(Action.STOP, code="1"), verdict=ELSEWHERE),
    rule("a script without our runtime succeeded", Decision(Action.STOP, code="0"), code="0", runtime="silent"),
    *counted("ended without a verdict", Action.AGAIN, "1", code="0"),
    *counted("failed"),
)


def decide(facts: dict[str, str]) -> Decision:
    """The decision of the first rule that matches; the last rule matches everything."""
    return next(each.decision for each in RULES if each.matches(facts))


BESIDE_ITSELF = '"$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"'
"""The directory of a policy that is a file of its own, as bash sees it."""


def retry_script(*, here: str = BESIDE_ITSELF, **values: Any) -> str:
    """The policy as bash, a part of the batch script.

    Args:
        here: a shell word, the job's ``nrp`` directory.
        values: what :func:`policy_values` takes.
    """
    return render("retry_policy.sh.j2", here=here, **policy_values(**values))


def policy_values(
    *,
    requeue: bool,
    max_failures: int = 0,
    max_attempts: int = 20,
    max_exclusions: int = 3,
    min_seconds_left: int = 120,
    batch_signal: str = "",
    pauses_s: Sequence[int] = (0, 5, 15, 30),
) -> dict[str, Any]:
    """What the template of the policy is filled with.

    Args:
        requeue: whether Slurm may bring the job back by itself.
        max_failures: failures in a row without progress after which the job is started again.
        max_attempts: failed starts in all, and starts in a row that did not fail and brought no known progress.
        max_exclusions: nodes that may be excluded, in all attempts together.
        min_seconds_left: seconds to the time limit below which a failure means a requeue.
        batch_signal: the signal that Slurm sends to the batch shell alone and that the job step is to get, or "".
        pauses_s: seconds before each try to reach Slurm's controller.
    """
    return {
        "requeue": requeue,
        "max_failures": max_failures,
        "max_attempts": max_attempts,
        "max_exclusions": max_exclusions,
        "min_seconds_left": min_seconds_left,
        "batch_signal": batch_signal,
        "pauses_s": pauses_s,
        "codes": [code for code in FACTS["code"] if code != "other"],
        "rules": RULES,
        "elsewhere": ELSEWHERE,
    }
