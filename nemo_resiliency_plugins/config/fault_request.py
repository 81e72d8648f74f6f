"""A fault that somebody asks for while the job runs, left as a file for the rank that is to have it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import ClassVar

from nemo_resiliency_plugins.config.rules import A_COUNT, POSITIVE, one_of, validate
from nemo_resiliency_plugins.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class FaultRequest:
    """``slow`` adds ``seconds`` to each of ``steps`` steps; ``exception`` and ``nan`` happen once."""

    kind: str
    rank: int
    seconds: float = 1.0
    steps: int = 20

    KINDS: ClassVar[tuple[str, ...]] = ("exception", "nan", "slow")

    def __post_init__(self) -> None:
        rules = {"kind": one_of(*self.KINDS), "rank": A_COUNT, "seconds": POSITIVE, "steps": A_COUNT}
        validate("FaultRequest", self, rules)

    def encode(self) -> str:
        return json.dumps(dataclasses.asdict(self)) + "\n"

    @classmethod
    def decode(cls, text: str) -> FaultRequest:
        """Read what :meth:`encode` gives.

        Raises:
            ConfigError: the text is something else.
        """
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError) as error:
            raise ConfigError("fault request", text[:200], f"cannot be read: {error}", "Remove the file.") from error


def request_path(directory: Path, rank: int) -> Path:
    """Where the rank looks for a request."""
    return directory / "faults" / f"request-rank{rank:05d}.json"
