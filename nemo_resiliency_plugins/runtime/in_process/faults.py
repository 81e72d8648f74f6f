"""What ended each life, and whether another one makes sense; all ranks decide alike, from the same notes."""

from __future__ import annotations

import dataclasses
import json
import traceback
from collections.abc import Sequence
from typing import Any

from nemo_resiliency_plugins.runtime.events import message_of

WITHOUT_PROGRESS = 3
"""So many lives in a row that the same error ends, at any step, before a newer checkpoint."""


@dataclasses.dataclass(frozen=True)
class Fault:
    """The error of one rank that ended a life, told by that rank.

    Attributes:
        rank: the number that it began with.
        kind: type of the error and where it was raised.
        step: the step that ran; None where no session knows.
        resumed: the step that the life began with; None as above, or where there was no checkpoint.
    """

    rank: int
    kind: str
    message: str
    step: int | None
    resumed: int | None

    @classmethod
    def of(cls, error: BaseException, rank: int, step: int | None, resumed: int | None) -> Fault:
        last = traceback.extract_tb(error.__traceback__)[-1:]
        where = f" at {last[0].filename}:{last[0].lineno}" if last else ""
        return cls(rank, f"{type(error).__name__}{where}", message_of(error)[:300], step, resumed)

    def encode(self) -> str:
        return json.dumps(dataclasses.asdict(self)) + "\n"

    def __str__(self) -> str:
        return f"{self.kind} on rank {self.rank}: {self.message}"


def decode(text: str) -> tuple[Fault, ...]:
    """The faults that the ranks have appended to one note."""
    return tuple(Fault(**fields) for fields in map(_fields, text.splitlines()) if fields)


def _fields(line: str) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(line) if line else {}
    return fields


@dataclasses.dataclass
class History:
    """The lives so far, oldest first."""

    lives: list[tuple[Fault, ...]] = dataclasses.field(default_factory=list)

    def add(self, faults: Sequence[Fault], *, lost: bool) -> None:
        """``lost``: a rank has left for good in that life; what the others met then is a consequence."""
        self.lives.append(() if lost else tuple(faults))

    def repeated(self) -> Fault | None:
        """An error that would return in the next life too.

        It has come twice in a row in the same step, or three times without a newer checkpoint between.
        """
        for fault in self.lives[-1] if self.lives else ():
            runs = self._in_a_row(fault)
            if len(runs) >= 2 and fault.step is not None and runs[1].step == fault.step:
                return fault
            if len(runs) >= WITHOUT_PROGRESS and len({each.resumed for each in runs[:WITHOUT_PROGRESS]}) == 1:
                return fault
        return None

    def _in_a_row(self, fault: Fault) -> list[Fault]:
        """The same error in the last lives, newest first."""
        found = []
        for life in reversed(self.lives):
            same = next((each for each in life if each.kind == fault.kind), None)
            if same is None:
                break
            found.append(same)
        return found
