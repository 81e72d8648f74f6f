"""The step that a start has left to be checked on another device: one small file, which the next start reads."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_resiliency_plugins.contract import write_atomically
from nemo_resiliency_plugins.runtime.log import line, logger
from nemo_resiliency_plugins.runtime.rerun.machine import Place

if TYPE_CHECKING:
    from nemo_resiliency_plugins.runtime.agreement import Ranks

FILE = "rerun_suspect.json"

Places = Sequence[Sequence[str]]
"""Node and device of each rank."""


@dataclasses.dataclass(frozen=True)
class Suspect:
    """``rank`` is None where the values were on all ranks before it could be told whose they were."""

    step: int
    rank: int | None
    micro_batch: int | None
    kind: str
    values: Sequence[float]
    places: Places

    @property
    def place(self) -> tuple[str, str]:
        """Node and device that are suspect; empty where that is unknown."""
        if self.rank is None:
            return "", ""
        node, device = self.places[self.rank]
        return node, device

    def seen_from(self, now: Places, bad_rank: int | None = None) -> Place:
        """Whether this start has the suspect rank's work on another device.

        If it is ``bad_rank`` whose result is bad now, and that is on the suspect device, then that is the same device,
        whichever work it has: launchers give a node other ranks at each start.
        """
        if bad_rank is not None and tuple(now[bad_rank]) == self.place:
            return Place.SAME
        if self.rank is None or self.rank >= len(now):
            return Place.SAME if _plain(now) == _plain(self.places) else Place.OTHER
        return Place.SAME if tuple(now[self.rank]) == self.place else Place.OTHER


def _plain(places: Places) -> list[tuple[str, ...]]:
    return [tuple(place) for place in places]


class SuspectFile:
    """Beside the checkpoints, since it belongs to the training and not to one job; only rank 0 touches it."""

    def __init__(self, directory: Path | None, ranks: Ranks) -> None:
        self._path = directory / FILE if directory is not None and ranks.rank == 0 else None
        self._ranks = ranks

    def read(self) -> Suspect | None:
        """Collective."""
        content = self._ranks.gather(self._content())[0]
        return None if content is None else Suspect(**content)

    def write(self, suspect: Suspect) -> None:
        if self._path is not None:
            write_atomically(self._path, json.dumps(dataclasses.asdict(suspect)) + "\n")

    def clear(self) -> None:
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _content(self) -> dict[str, Any] | None:
        if self._path is None or not self._path.exists():
            return None
        try:
            content: dict[str, Any] = json.loads(self._path.read_text())
            Suspect(**content)
        except (OSError, ValueError, TypeError) as error:
            logger().warning(line(0, f"{self._path} cannot be read and is left alone: {error!r}"))
            return None
        return content
