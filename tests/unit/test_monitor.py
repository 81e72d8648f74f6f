"""The line to the monitor, with a client that remembers what it was told."""

from __future__ import annotations

import os
import types
from pathlib import Path
from typing import Any

import pytest

from nemo_resiliency_plugins.contract import Attempt
from nemo_resiliency_plugins.runtime import monitor as module
from nemo_resiliency_plugins.runtime import record
from nemo_resiliency_plugins.runtime.events import EventLog
from nemo_resiliency_plugins.runtime.identity import Identity
from nemo_resiliency_plugins.runtime.monitor import Monitor
from nemo_resiliency_plugins.runtime.record import note_end, read_last_life

LIMITS = {"step": 5.0, "out_of_section": 9.0}


class Client:
    """Stands for NVRx's client."""

    def __init__(self) -> None:
        self.section_timeouts = {"step": 5.0}
        self.out_of_section_timeout = 9.0
        self.heartbeat_timeouts = (None, None)
        self.limits: list[Any] = []

    def set_timeouts(self, sections: dict[str, float | None], out: float | None, heartbeats: Any) -> None:
        self.limits.append((sections["step"], out))

    def start_section(self, name: str) -> None: ...

    def end_section(self, name: str) -> None: ...


@pytest.fixture
def identity(tmp_path: Path) -> Identity:
    return Identity(0, 1, "n1", Attempt(), tmp_path, launched=True)


@pytest.fixture
def monitor(tmp_path: Path, identity: Identity, monkeypatch: pytest.MonkeyPatch) -> Monitor:
    (tmp_path / "monitor.socket").touch()
    monkeypatch.setenv("FT_RANK_MONITOR_IPC_SOCKET", str(tmp_path / "monitor.socket"))
    monkeypatch.setattr(module, "MonitorClient", Client)
    return Monitor(identity, EventLog(None, Attempt(), 0))


def told(monitor: Monitor) -> list[Any]:
    client: Any = monitor._client
    limits: list[Any] = client.limits
    return limits


def test_a_pause_within_a_pause_does_not_end_it(monitor: Monitor) -> None:
    monitor.suspend()
    monitor.suspend()
    monitor.resume()
    assert told(monitor) == [(None, None)]
    monitor.resume()
    assert told(monitor) == [(None, None), (5.0, 9.0)]


def test_limits_learned_in_a_pause_hold_after_it(monitor: Monitor) -> None:
    monitor.suspend()
    monitor.allow({"step": 2.0, "out_of_section": 3.0}, span_s=0.5)
    monitor.resume()
    assert told(monitor) == [(None, None), (2.5, 3.0)]


def test_a_crash_in_a_pause_is_no_hang(monitor: Monitor, tmp_path: Path) -> None:
    monitor.suspend()
    monitor.changed("step", "out_of_section")
    last = read_last_life(tmp_path / "ranks" / "rank00000.json")
    assert last is not None
    assert last.hung_in is None


def test_the_next_start_knows_the_configured_limits(monitor: Monitor, identity: Identity) -> None:
    monitor.allow({"step": 2.0, "out_of_section": 3.0}, span_s=0.5)
    again = Monitor(identity, EventLog(None, Attempt(), 0))
    assert again.configured == LIMITS


@pytest.mark.parametrize(("woken_s", "hung"), [(0.5, "step"), (2.0, None)])
def test_what_a_woken_rank_does_before_it_is_killed_hides_no_hang(
    monitor: Monitor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, woken_s: float, hung: str | None
) -> None:
    moments = iter([100.0, 106.0, 106.1, 106.2, 106.1 + woken_s])
    clock = types.SimpleNamespace(time=lambda: next(moments))
    for room in (module, record):
        monkeypatch.setattr(room, "time", clock)
    for previous, current in (("out_of_section", "step"), ("step", "step"), ("step", "other"), ("other", "step")):
        monitor.changed(previous, current)
    path = tmp_path / "ranks" / "rank00000.json"
    note_end(path, os.getpid())
    last = read_last_life(path)
    assert last is not None
    assert last.hung_in == hung
