"""What the ranks have seen in one run of a step, and what is suspect about it. No tensors here."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Sequence


class Kind(str, enum.Enum):
    """What is wrong with a result."""

    NAN = "NaN in the loss"
    INF = "Inf in the loss"
    SPIKE = "a spike in the loss"
    GRADIENTS = "NaN or Inf in the gradients"


@dataclasses.dataclass(frozen=True)
class Checks:
    """What is looked for; a loss of a magnitude above ``limit`` is a spike."""

    loss: bool = True
    gradients: bool = True
    limit: float = math.inf

    def of_loss(self, loss: float) -> Kind | None:
        if not math.isfinite(loss):
            return (Kind.NAN if math.isnan(loss) else Kind.INF) if self.loss else None
        return Kind.SPIKE if abs(loss) > self.limit else None

    def any_bad(self, losses: Sequence[float]) -> bool:
        return any(self.of_loss(loss) for loss in losses)


@dataclasses.dataclass(frozen=True)
class Seen:
    """What one rank has seen in one run of a step.

    Attributes:
        losses: by micro-batch.
        gradients: how many elements of its gradients are NaN or Inf, after all reductions.
        sources: the micro-batches whose own gradients were so before any reduction, as far as that is known.
    """

    losses: Sequence[float]
    gradients: int = 0
    sources: Sequence[int] = ()


Run = Sequence[Seen]
"""Of each rank, in their order."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """``rank`` and ``micro_batch`` are None where a reduction has spread the values over the ranks."""

    kind: Kind
    rank: int | None
    micro_batch: int | None
    value: float
    """The loss; of gradients, the number of elements."""

    def __str__(self) -> str:
        rank = "an unknown rank" if self.rank is None else f"rank {self.rank}"
        where = "" if self.micro_batch is None else f", micro-batch {self.micro_batch}"
        value = f"{self.value:.0f} elements" if self.kind is Kind.GRADIENTS else f"{self.value!r}"
        return f"{self.kind.value} ({value}) on {rank}{where}"


def find(run: Run, checks: Checks) -> Finding | None:
    """The first suspect result: losses before gradients, earlier micro-batches and lower ranks first."""
    losses = sorted((number, rank, loss) for rank, seen in enumerate(run) for number, loss in enumerate(seen.losses))
    for number, rank, loss in losses:
        kind = checks.of_loss(loss)
        if kind is not None:
            return Finding(kind, rank, number, loss)
    return _in_gradients(run) if checks.gradients else None


def _in_gradients(run: Run) -> Finding | None:
    seeing = [rank for rank, seen in enumerate(run) if seen.gradients]
    if not seeing:
        return None
    sources = sorted((number, rank) for rank, seen in enumerate(run) for number in seen.sources)
    micro_batch, rank = sources[0] if sources else (None, seeing[0] if len(seeing) == 1 else None)
    return Finding(Kind.GRADIENTS, rank, micro_batch, float(run[rank if rank is not None else seeing[0]].gradients))


def magnitude(run: Run) -> float:
    """That of the largest loss that is a number; 0 where there is none."""
    return max((abs(loss) for seen in run for loss in seen.losses if math.isfinite(loss)), default=0.0)


def equal(one: Run, other: Run, tolerance: float) -> bool:
    """Whether two runs gave the same; all NaNs are alike."""
    return len(one) == len(other) and all(
        len(a.losses) == len(b.losses)
        and a.gradients == b.gradients
        and all(same(x, y, tolerance) for x, y in zip(a.losses, b.losses, strict=True))
        for a, b in zip(one, other, strict=True)
    )


def same(one: float, other: float, tolerance: float) -> bool:
    return difference(one, other) <= tolerance


def difference(one: float, other: float) -> float:
    """The relative difference; infinite where only one is a number, or where they are infinite in other ways."""
    if one == other or (math.isnan(one) and math.isnan(other)):
        return 0.0
    if not (math.isfinite(one) and math.isfinite(other)):
        return math.inf
    return abs(one - other) / max(abs(one), abs(other))
