"""What the ranks and their readers judge alike: is a noted process still there, and which rank held up the others."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

MOST_SUSPECTS = 16
SHOWN_SUSPECTS = 4


def machine() -> str | None:
    """Where numbers of processes mean the same: one boot of one kernel, and one PID namespace of it.

    None where that cannot be told, or processes of other users are hidden and would seem to have ended.
    """
    try:
        Path("/proc/1/stat").read_text()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None


def started(pid: int) -> int | None:
    """When process ``pid`` began, in clock ticks since the boot; None where it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


@dataclasses.dataclass(frozen=True)
class Sign:
    """The last sign of a rank: in ``section`` since ``since``, seconds since the epoch.

    A rank tells of a new step when it has been in its section for ``span_s``, and of a new section at once.
    """

    rank: int
    node: str
    section: str
    since: float
    step: int
    span_s: float
    ended: float
    hung: str | None
    """The section whose limit was over when the rank ended."""

    def is_behind(self, other: Sign) -> bool:
        """Whether this rank has certainly not reached what the other one was in."""
        if self.section != other.section:
            return self.since < other.since and self.step <= other.step
        return self.step < other.step and other.since - self.since > self.span_s


class Hindmost:
    """Of the ranks that ended together, those of which no other one is behind. Only a few are kept."""

    def __init__(self, signs: Iterable[Sign] = ()) -> None:
        self.signs: list[Sign] = []
        self.hung: Sign | None = None
        """The first one that overran a limit: without any, nobody has hung."""
        self.compared = 0
        for sign in signs:
            self.add(sign)

    def add(self, sign: Sign) -> None:
        if any(each.rank == sign.rank for each in self.signs):
            return  # told twice
        self.compared += 1
        if sign.hung and (self.hung is None or sign.ended < self.hung.ended):
            self.hung = sign
        if any(each.is_behind(sign) for each in self.signs):
            return
        self.signs = [each for each in self.signs if not sign.is_behind(each)]
        if len(self.signs) < MOST_SUSPECTS:
            self.signs.append(sign)

    @property
    def places(self) -> list[tuple[int, str]]:
        """Rank and node of each."""
        return [(each.rank, each.node) for each in self.signs]

    @property
    def section(self) -> str:
        """Where they hung."""
        return (self.signs[0].hung or self.signs[0].section).replace("_", " ")

    @property
    def are_told_apart(self) -> bool:
        """Whether one rank is known to have held up others."""
        return len(self.signs) == 1 < self.compared


def one_of(places: Sequence[tuple[int, str]]) -> str:
    """``rank 1 on n0``, or ``one of ranks 0, 1 on n0`` where that is all that is known."""
    ranks = sorted({rank for rank, _ in places})
    nodes = sorted({node for _, node in places if node})
    shown = ", ".join(map(str, ranks[:SHOWN_SUSPECTS])) + (" and others" if len(ranks) > SHOWN_SUSPECTS else "")
    where = ", ".join(nodes[:SHOWN_SUSPECTS]) + (" and others" if len(nodes) > SHOWN_SUSPECTS else "")
    who = f"one of ranks {shown}" if len(ranks) > 1 else f"rank {shown}"
    return f"{who} on {where}" if where else who
