"""What is said about suspect results: in the log of rank 0, as an event, and in words."""

from __future__ import annotations

import dataclasses
from typing import Any

from nemo_resiliency_plugins.runtime.events import EventLog
from nemo_resiliency_plugins.runtime.log import line, logger
from nemo_resiliency_plugins.runtime.rerun.machine import MEANING, Evidence, Outcome, why_failed
from nemo_resiliency_plugins.runtime.rerun.results import Finding
from nemo_resiliency_plugins.runtime.rerun.suspects import Suspect


@dataclasses.dataclass(frozen=True)
class Case:
    """A step with a suspect result, and what was decided.

    Attributes:
        finding: what was wrong, and whose it was.
        again: the value at the same place in the repetition; None where there was none.
        node, device: of the rank of ``finding``; empty where the rank is unknown.
        suspect: what an earlier start has left about this step.
        bad_state: what is wrong with the weights or the optimizer's state before the step, if that was looked at.
    """

    step: int
    outcome: Outcome
    evidence: Evidence
    finding: Finding | None
    again: float | None
    node: str
    device: str
    suspect: Suspect | None
    bad_state: str | None = None

    def as_event(self) -> dict[str, Any]:
        """``values``: of the first run and of the repetition; ``before``: those that the suspect was left with."""
        finding, suspect = self.finding, self.suspect
        kind = finding.kind.value if finding else suspect.kind if suspect else None
        whose = finding or suspect
        values = [] if finding is None else [finding.value, *([] if self.again is None else [self.again])]
        return {
            "outcome": self.outcome.value,
            "step": self.step,
            "kind": kind,
            "suspect_rank": whose.rank if whose else None,
            "micro_batch": whose.micro_batch if whose else None,
            "node": self.node,
            "device": self.device,
            "values": values,
            "alike": self.evidence.alike,
            "bad_state": self.bad_state,
            "before": list(suspect.values) if suspect else None,
        }

    def __str__(self) -> str:
        place = f" ({self.node}, {self.device})" if self.node else ""
        if self.finding is None:
            suspect = self.suspect
            what = f"{suspect.kind} on rank {suspect.rank}" if suspect else "nothing"
            return f"step {self.step}, suspect in an earlier start: {what}{place}, {self._before}. {self._meaning}"
        again = "" if self.again is None else f"; again in place: {self.again!r}"
        before = f"; in an earlier start: {self._before}" if self.suspect else ""
        return f"step {self.step}: {self.finding}{place}{again}{before}. {self._meaning}"

    @property
    def _before(self) -> str:
        return ", ".join(repr(value) for value in self.suspect.values) if self.suspect else ""

    @property
    def _meaning(self) -> str:
        if self.bad_state is not None:
            return f"{self.bad_state}: the state was bad before this step, and the next start looks for an older one"
        if self.outcome is Outcome.FAILED:
            return why_failed(self.evidence.place)
        return MEANING[self.outcome]


def tell(case: Case, counts: dict[str, int], events: EventLog) -> None:
    """``counts``: how often each outcome came up in this training."""
    events.emit("suspect_result", **case.as_event(), counts=dict(counts))
    logger().warning(line(0, f"result validation: {case}"))
