"""What a run of a step, its repetition in place and its repetition elsewhere say together. Pure."""

from __future__ import annotations

import dataclasses
import enum

from nemo_resiliency_plugins.config.rerun import EVERYTHING, SPIKES
from nemo_resiliency_plugins.runtime.rerun.results import Kind


class Place(str, enum.Enum):
    """Where a step runs that an earlier start has left as suspect."""

    OTHER = "another device"
    SAME = "the same device"


class Outcome(str, enum.Enum):
    """What follows."""

    GOOD = "good"
    BORDERLINE = "borderline"
    TRANSIENT = "transient"
    ELSEWHERE = "elsewhere"
    FIRST_DEVICE = "first_device"
    NOT_AGAIN = "not_again"
    ACCEPTED = "accepted"
    FAILED = "failed"

    @property
    def leaves(self) -> bool:
        """Whether the ranks end, instead of going on with the last result."""
        return self in (Outcome.ELSEWHERE, Outcome.FAILED)


MEANING = {
    Outcome.BORDERLINE: "the repetition gave the same within the tolerance, and is just not suspect: no fault",
    Outcome.TRANSIENT: "the repetition on the same device gave another result: a transient fault of that device",
    Outcome.ELSEWHERE: "the repetition on the same device is suspect too: the step has to run on another device",
    Outcome.FIRST_DEVICE: "on another device the step is good: the first device is at fault",
    Outcome.NOT_AGAIN: "after a restart on the same device the step is good: a transient fault",
    Outcome.ACCEPTED: "it came again after a restart and is accepted: the training goes on with it",
    Outcome.FAILED: "it came again",
}


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What is known about a step.

    Attributes:
        first: what was wrong in the first run of this start; None if nothing.
        again: what was wrong in the repetition in place.
        alike: both runs gave the same, within the tolerance.
        place: where this is, if an earlier start has left this very step as suspect.
    """

    first: Kind | None = None
    again: Kind | None = None
    alike: bool = False
    place: Place | None = None


def judge(evidence: Evidence, accept: str) -> Outcome:
    """Every evidence has exactly one outcome; a step that is suspect after a restart is never sent on once more."""
    if evidence.first is None:
        seen_before = {None: Outcome.GOOD, Place.OTHER: Outcome.FIRST_DEVICE, Place.SAME: Outcome.NOT_AGAIN}
        return seen_before[evidence.place]
    if evidence.again is None:
        return Outcome.BORDERLINE if evidence.alike else Outcome.TRANSIENT
    if evidence.place is None:
        return Outcome.ELSEWHERE
    accepted = accept == EVERYTHING or (accept == SPIKES and evidence.again is Kind.SPIKE)
    return Outcome.ACCEPTED if accepted else Outcome.FAILED


def why_failed(place: Place | None) -> str:
    """What a result means that stayed suspect after a restart."""
    if place is Place.SAME:
        return "it came again after a restart, but on the same device: a fault of the device, or the result is correct"
    return "it came again on another device: the correct result of this step, or a fault of the software"
