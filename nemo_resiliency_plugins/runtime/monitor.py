"""The rank's line to NVRx's rank monitor: sections go out, limits are set, and a cut line is benign."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

from nemo_resiliency_plugins.compat.nvrx import MONITOR_SOCKET, MonitorClient, MonitorLost
from nemo_resiliency_plugins.contract import OUT_OF_SECTION, STEP, write_atomically
from nemo_resiliency_plugins.runtime.events import EventLog
from nemo_resiliency_plugins.runtime.identity import Identity
from nemo_resiliency_plugins.runtime.leaving_word import told_if_not_left
from nemo_resiliency_plugins.runtime.log import line, logger
from nemo_resiliency_plugins.runtime.record import Doing, RankRecord

Limits = Mapping[str, float | None]
"""Seconds by section name, with an entry for the time out of sections; None: no limit."""


class Monitor:
    """Listens to the section clock.

    Raises:
        MonitorLost: from the constructor, when the monitor cannot be reached.
    """

    def __init__(self, identity: Identity, events: EventLog) -> None:
        self._identity = identity
        self._events = events
        self._client: MonitorClient | None = MonitorClient()
        self._note = ConfiguredNote(Path(os.environ[MONITOR_SOCKET]))
        answered = {**self._client.section_timeouts, OUT_OF_SECTION: self._client.out_of_section_timeout}
        self.configured: Limits = self._note.first_answer(answered)
        self._sections = set(self._client.section_timeouts)
        self._heartbeats = self._client.heartbeat_timeouts
        self._unwatched: set[str] = set()
        self._suspensions = 0
        self._current = OUT_OF_SECTION
        self._limits: dict[str, float | None] = dict(self.configured)
        self._record = RankRecord(identity.directory, identity.rank)
        self.last_life = self._record.last_life
        self._doing: Doing | None = None
        self._overran: tuple[str | None, float] = (None, 0.0)
        self._span_s = 0.0
        self.step = 0

    @property
    def has_limits(self) -> bool:
        """Whether the launcher was given any timeout."""
        return any(limit is not None for limit in (*self.configured.values(), *self._heartbeats))

    def allow(self, limits: Limits, span_s: float) -> None:
        """Set all limits; ``step`` gets ``span_s`` more, because its section may span earlier short steps."""
        step, self._span_s = limits.get(STEP), span_s
        self._limits = {**limits, STEP: step + span_s} if step is not None else dict(limits)
        if not self._suspensions:
            self._send_limits(self._limits, self._heartbeats)

    def suspend(self) -> None:
        """No limit holds until the last :meth:`resume`."""
        self._suspensions += 1
        if self._suspensions == 1:
            self._send_limits(dict.fromkeys(self._limits), (None, None))

    def resume(self) -> None:
        self._suspensions -= 1
        if not self._suspensions:
            self._send_limits(self._limits, self._heartbeats)
            self._note_down()

    def changed(self, previous: str, current: str) -> None:
        """The rank has left one section and is in another; a name without a limit is time out of sections."""
        if self._client is None:
            return
        try:
            if previous in self._sections:
                self._client.end_section(previous)
            if current in self._sections:
                self._client.start_section(current)
            if self._heartbeats != (None, None):
                self._client.heartbeat()
        except MonitorLost as error:
            self._lost(error)
        if current not in self._limits:
            self._note_unwatched(current)
        self._current = current
        self._note_down()

    def _note_down(self) -> None:
        """For the next start, should this one be killed: where the rank is, and which limit holds there."""
        limit = None if self._suspensions else self._limits.get(self._current, self._limits[OUT_OF_SECTION])
        now = time.time()
        if self._doing is not None and self._doing.overdue(now):
            self._overran = (self._doing.section, now)
        place = (self._identity.node, self._span_s)
        self._doing = Doing(os.getpid(), self._current, now, limit, self.step, *self._overran, *place)
        self._record.write(self._doing)

    def close(self, *, finished: bool) -> None:
        """End the watch of this rank. Safe on an error path: nothing here waits for another rank."""
        if finished:
            # The process may fail yet, after its session; the monitor then answers the next start with these.
            self._send_limits(self.configured, self._heartbeats)
        client, self._client = self._client, None
        if client is not None:
            client.close()
        self._record.close()
        if finished and client is not None:
            self._note.remove()

    def _send_limits(self, limits: Limits, heartbeats: tuple[float | None, float | None]) -> None:
        if self._client is None:
            return
        try:
            self._client.set_timeouts(
                {name: limits[name] for name in self._sections}, limits[OUT_OF_SECTION], heartbeats
            )
        except MonitorLost as error:
            self._lost(error)

    def _lost(self, error: MonitorLost) -> None:
        self._client = None
        self._events.emit("monitor_lost", message=str(error))
        text = "the monitor has closed the connection, as it does when the launcher restarts the ranks"
        logger().warning(line(self._identity.rank, text))

    def _note_unwatched(self, name: str) -> None:
        if name not in self._unwatched:
            self._unwatched.add(name)
            text = f"section {name!r} has no timeout of its own: the limit out of sections holds in it"
            logger().info(line(self._identity.rank, text))


class ConfiguredNote:
    """Remembers, beside the monitor's socket, the limits that the launcher was started with.

    A monitor outlives restarts of its rank and from then on answers with the limits that the rank last set
    (all NVRx versions), so only its first answer tells the configured ones.
    """

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._path = socket.with_name(f"{socket.name}.configured")

    def first_answer(self, answer: Limits) -> Limits:
        try:
            if self._path.stat().st_mtime >= self._socket.stat().st_mtime:
                kept: Limits = json.loads(self._path.read_text())
                return kept
        except (OSError, ValueError):
            pass
        with told_if_not_left("the limits for the next start of this rank"):
            write_atomically(self._path, json.dumps(answer))
        return answer

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)
