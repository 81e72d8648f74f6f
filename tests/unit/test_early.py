"""Signals in the stub of a rank, before there is a session."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from nemo_resiliency_plugins import runtime
from nemo_resiliency_plugins.contract import ENV_NOTICE, NOTICE_ANY
from nemo_resiliency_plugins.runtime.events import EventLog
from nemo_resiliency_plugins.runtime.identity import Identity
from nemo_resiliency_plugins.runtime.preemption import early
from nemo_resiliency_plugins.runtime.preemption.early import EarlyHandler
from tests.harness import python
from tests.unit.conftest import MakeIdentity

BECOMING_ANOTHER = """
import signal, sys
from nemo_resiliency_plugins.runtime import launch
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1})
signal.signal(signal.SIGHUP, signal.SIG_IGN)
shown = "import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, ()), signal.getsignal(signal.SIGHUP))"
launch.main(["--exec", sys.executable, "-c", shown])
"""


@pytest.fixture
def installed(make_identity: MakeIdentity, monkeypatch: pytest.MonkeyPatch) -> Iterator[Identity]:
    monkeypatch.setenv(ENV_NOTICE, NOTICE_ANY)
    identity = make_identity()
    before = signal.getsignal(signal.SIGTERM)
    early.install(identity, EventLog(None, identity.attempt, 0))
    yield identity
    signal.signal(signal.SIGTERM, before)


def test_a_session_that_listens_takes_over_and_puts_back_what_was_before_both(installed: Identity) -> None:
    assert isinstance(signal.getsignal(signal.SIGTERM), EarlyHandler)
    with runtime.session(runtime.PreemptionConfig(exit_signal_handler=True)):
        assert not isinstance(signal.getsignal(signal.SIGTERM), EarlyHandler)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_session_that_does_not_listen_puts_back_what_was_before(installed: Identity) -> None:
    with runtime.session():
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_outside_the_main_thread_the_handler_is_at_least_no_longer_in_charge(installed: Identity) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=lambda: runtime.session().__enter__())
    thread.start()
    thread.join()
    assert isinstance(handler, EarlyHandler)
    assert handler.owner is None


def test_without_a_node_script_nothing_is_installed(make_identity: MakeIdentity) -> None:
    before = signal.getsignal(signal.SIGTERM)
    identity = make_identity()
    early.install(identity, EventLog(None, identity.attempt, 0))
    assert signal.getsignal(signal.SIGTERM) is before


def test_another_program_inherits_nothing_blocked_and_nothing_ignored() -> None:
    shown = python(BECOMING_ANOTHER, env={ENV_NOTICE: NOTICE_ANY})
    assert shown.strip() == f"set() {signal.SIG_DFL}"
