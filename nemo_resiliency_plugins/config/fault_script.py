"""Faults to inject at given steps into a run of one's own."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from typing import ClassVar

from nemo_resiliency_plugins.config.rules import A_COUNT, one_of, validate
from nemo_resiliency_plugins.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Fault:
    """One scripted fault: ``kind`` happens on ``rank`` when it begins ``step``, once per job."""

    kind: str
    rank: int
    step: int

    KINDS: ClassVar[tuple[str, ...]] = ("kill", "hang", "exception")

    def __post_init__(self) -> None:
        validate("Fault", self, {"kind": one_of(*self.KINDS), "rank": A_COUNT, "step": A_COUNT})

    @property
    def name(self) -> str:
        return f"{self.kind}-rank{self.rank}-step{self.step}"

    def __str__(self) -> str:
        return f"{self.kind}@{self.rank}:{self.step}"


@dataclasses.dataclass(frozen=True)
class FaultScript:
    """Faults to inject into a run of one's own, written as ``kill@RANK:STEP,hang@RANK:STEP``.

    ``FaultScript().kill(rank=1, step=3).hang(rank=0, step=7)``: *kill* is SIGKILL, *hang* is SIGSTOP,
    *exception* raises in the training loop.
    """

    faults: tuple[Fault, ...] = ()

    PATTERN: ClassVar[re.Pattern[str]] = re.compile(r"(\w+)@(\d+):(\d+)")

    def kill(self, *, rank: int, step: int) -> FaultScript:
        return self.add(Fault("kill", rank, step))

    def hang(self, *, rank: int, step: int) -> FaultScript:
        return self.add(Fault("hang", rank, step))

    def exception(self, *, rank: int, step: int) -> FaultScript:
        return self.add(Fault("exception", rank, step))

    def add(self, fault: Fault) -> FaultScript:
        return FaultScript((*self.faults, fault))

    def for_rank(self, rank: int) -> Iterable[Fault]:
        return (fault for fault in self.faults if fault.rank == rank)

    def __str__(self) -> str:
        return ",".join(str(fault) for fault in self.faults)

    @classmethod
    def parse(cls, text: str) -> FaultScript:
        """Read what ``str()`` of a script gives.

        Raises:
            ConfigError: for text of another form, or an unknown kind of fault.
        """
        script = cls()
        for part in filter(None, text.split(",")):
            match = cls.PATTERN.fullmatch(part.strip())
            if not match:
                raise ConfigError("fault_script", part, "must read KIND@RANK:STEP", "For example kill@1:20.")
            script = script.add(Fault(match[1], int(match[2]), int(match[3])))
        return script
