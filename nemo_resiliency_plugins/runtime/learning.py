"""Learning section timeouts over starts, runs and ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from nemo_resiliency_plugins.config import FaultToleranceConfig
from nemo_resiliency_plugins.runtime import timeouts
from nemo_resiliency_plugins.runtime.log import line, logger
from nemo_resiliency_plugins.runtime.monitor import Limits
from nemo_resiliency_plugins.runtime.timeouts import Seen

Maximum = Callable[[list[float]], list[float]]
"""A collective: takes as many numbers from each rank and gives all of them the element-wise maximum."""


class Learner:
    """What all ranks have agreed on so far, and the limits that follow from it; one rank ``writes`` them down."""

    def __init__(self, config: FaultToleranceConfig, configured: Limits, *, writes: bool, world_size: int) -> None:
        self._policy = timeouts.Policy(config.timeout_safety_factor, config.timeout_floor_s)
        self._configured = configured
        self._writes = writes
        self._world_size = world_size
        self._names = sorted(configured)
        self._agreed: dict[str, Seen] = {}
        self._path: Path | None = None

    def start(self, directory: Path | None, hung_in: str | None, maximum: Maximum) -> Limits:
        """Take over what ``ft_state.json`` in ``directory`` holds; a limit that a rank was killed by is doubled."""
        if directory is not None:
            self._path = directory / timeouts.FILE_NAME
            self._agreed = dict(self._load(self._path))
        hung = maximum([float(name == hung_in) for name in self._names])
        for name, flag in zip(self._names, hung, strict=True):
            if flag and name in self._agreed:
                self._agreed[name] = self._agreed[name].doubled()
        return self._conclude()

    def update(self, seen: Mapping[str, Seen], maximum: Maximum) -> Limits:
        """Agree with all ranks on what was seen in this start."""
        mine = [seen.get(name, Seen()) for name in self._names]
        values = maximum([value for entry in mine for value in (float(entry.samples), entry.longest_s)])
        for name, samples, longest in zip(self._names, values[::2], values[1::2], strict=True):
            known = self._agreed.get(name, Seen())
            self._agreed[name] = known.merged(Seen(int(samples), longest))
        return self._conclude()

    def _load(self, path: Path) -> Mapping[str, Seen]:
        try:
            return timeouts.load(path, world_size=self._world_size, sections=set(self._names))
        except timeouts.BadState as error:
            text = f"{path} is not used ({error}); the configured timeouts hold"
            if self._writes:
                logger().warning(line(0, text))
            return {}

    def _conclude(self) -> Limits:
        limits = {
            name: self._policy.limit(limit, self._agreed.get(name, Seen())) for name, limit in self._configured.items()
        }
        if self._writes and self._path is not None:
            self._save(self._path, limits)
        return limits

    def _save(self, path: Path, limits: Limits) -> None:
        try:
            timeouts.save(path, world_size=self._world_size, seen=self._agreed, limits=limits)
        except OSError as error:
            self._path = None
            logger().warning(line(0, f"{path} cannot be written ({error}): later runs learn anew"))
