"""A signal is a preemption notice or a restart by the launcher."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nemo_resiliency_plugins.config import PreemptionConfig
from nemo_resiliency_plugins.contract import ENV_NOTICE, NOTICE_ANY, NOTICE_LAUNCHER, notice_path
from nemo_resiliency_plugins.runtime.preemption import notice
from nemo_resiliency_plugins.runtime.preemption.notice import Judge, pending_signals, signals_of
from tests.harness import wait_for
from tests.unit.conftest import MakeIdentity

STATUS = "Name:\tpython\nSigPnd:\t0000000000000200\nShdPnd:\t0000000000004000\nSigBlk:\tffffffffffffffff\n"
BLOCKING = """
import signal, time
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
print("blocked", flush=True)
time.sleep(60)
"""


class Clock:
    """Time passes only in :meth:`sleep`."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def judge(mode: str | None, announced_after_s: float = float("inf")) -> tuple[Judge, Clock]:
    clock = Clock()
    return Judge(mode, lambda number: clock.now >= announced_after_s, clock, clock.sleep), clock


@pytest.fixture
def shielded() -> Iterator[int]:
    """The pid of a process that has SIGTERM blocked, as a launcher under a node script."""
    with subprocess.Popen([sys.executable, "-c", BLOCKING], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"blocked\n"
        yield process.pid
        process.kill()


@pytest.mark.parametrize("mode", [None, NOTICE_ANY])
def test_with_no_launcher_between_every_signal_is_a_notice_at_once(mode: str | None) -> None:
    decides, clock = judge(mode)
    assert decides.is_notice(signal.SIGTERM)
    assert clock.now == 0.0


def test_under_a_launcher_a_signal_that_nobody_announces_is_a_restart() -> None:
    decides, clock = judge(NOTICE_LAUNCHER)
    assert not decides.is_notice(signal.SIGTERM)
    assert clock.now == pytest.approx(notice.WAIT_S, abs=notice.POLL_S)


@pytest.mark.parametrize("after_s", [0.0, 0.03, 0.09])
def test_under_a_launcher_an_announcement_may_come_a_little_later(after_s: float) -> None:
    assert judge(NOTICE_LAUNCHER, after_s)[0].is_notice(signal.SIGTERM)


def test_launchers_stop_their_workers_with_sigterm_alone() -> None:
    assert judge(NOTICE_LAUNCHER)[0].is_notice(signal.SIGUSR1)


def test_both_masks_of_a_process_are_read() -> None:
    assert pending_signals(STATUS) == {signal.SIGUSR1, signal.SIGTERM}
    assert pending_signals("Name:\tpython\n") == set()


def test_a_signal_that_waits_in_the_launcher_is_seen(shielded: int, make_identity: MakeIdentity) -> None:
    assert not notice._is_pending(shielded, signal.SIGTERM)
    os.kill(shielded, signal.SIGTERM)
    wait_for(lambda: notice._is_pending(shielded, signal.SIGTERM), deadline_s=5)


def test_a_launcher_that_is_gone_has_nothing_pending() -> None:
    assert not notice._is_pending(2**22 + 1, signal.SIGTERM)


def test_the_node_scripts_file_is_a_notice(make_identity: MakeIdentity) -> None:
    identity = make_identity()
    decides = Judge.from_env(identity, {ENV_NOTICE: NOTICE_LAUNCHER})
    assert not decides.is_notice(signal.SIGTERM)
    path = notice_path(Path(identity.directory or ""), identity.attempt)
    path.parent.mkdir(parents=True)
    path.touch()
    assert decides.is_notice(signal.SIGTERM)


def test_sigterm_counts_whatever_signal_was_asked_for() -> None:
    assert signals_of(PreemptionConfig()) == {signal.SIGTERM}
    assert signals_of(PreemptionConfig(exit_signal="USR1")) == {signal.SIGTERM, signal.SIGUSR1}
