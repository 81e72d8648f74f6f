from __future__ import annotations

import dataclasses
import signal
from pathlib import Path

import pytest

from nemo_resiliency_plugins.config import FaultToleranceConfig
from nemo_resiliency_plugins.errors import ConfigError
from nemo_resiliency_plugins.runtime.events import EventLog
from nemo_resiliency_plugins.runtime.faults import FaultInjector, InjectedError
from nemo_resiliency_plugins.runtime.identity import Identity
from tests.harness import wait_for
from tests.unit.conftest import MakeIdentity

DESCRIBED = {"simulated_fault_rank": 0, "simulated_fault_type": "rank_hung", "simulated_fault_base_delay": 2.5}


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The signals that this process would have sent to itself."""
    signals: list[int] = []
    monkeypatch.setattr("nemo_resiliency_plugins.runtime.faults.os.kill", lambda pid, number: signals.append(number))
    return signals


def injector(identity: Identity, **fields: object) -> FaultInjector:
    return FaultInjector(FaultToleranceConfig(**fields), identity, EventLog(None, identity.attempt, 0))  # type: ignore[arg-type]


def simulated(identity: Identity, **fields: object) -> FaultInjector:
    return injector(identity, simulate_fault=True, **fields)


@pytest.mark.parametrize(("kind", "number"), [("kill", signal.SIGKILL), ("hang", signal.SIGSTOP)])
def test_a_scripted_fault_hits_its_rank_at_its_step(
    make_identity: MakeIdentity, sent: list[int], kind: str, number: int
) -> None:
    there, elsewhere = (injector(make_identity(rank, 2), fault_script=f"{kind}@1:3") for rank in (1, 0))
    for step in range(3):
        there.step_begins(step)
        elsewhere.step_begins(step)
    assert sent == []
    elsewhere.step_begins(3)
    there.step_begins(3)
    assert sent == [number]


def test_a_scripted_exception_is_raised_in_the_loop(make_identity: MakeIdentity) -> None:
    with pytest.raises(InjectedError, match="step 2"):
        injector(make_identity(), fault_script="exception@0:2").step_begins(2)


@pytest.mark.parametrize("later", [{"cycle": 1}, {"round": 1}, {"restart_count": 1}])
def test_a_scripted_fault_fires_once_in_a_job(
    make_identity: MakeIdentity, sent: list[int], later: dict[str, int]
) -> None:
    injector(make_identity(), fault_script="kill@0:2").step_begins(2)
    again = injector(make_identity(**later), fault_script="kill@0:2,kill@0:4")
    again.step_begins(2)
    assert sent == [signal.SIGKILL]
    again.step_begins(4)
    assert sent == [signal.SIGKILL] * 2
    assert not again.armed


@pytest.mark.parametrize("fields", [{"fault_script": "kill@4:1"}, {"simulate_fault": True, "simulated_fault_rank": 4}])
def test_a_rank_outside_the_world_is_refused(make_identity: MakeIdentity, fields: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="a job of 4 ranks does not have"):
        injector(make_identity(0, 4), **fields)


@pytest.mark.parametrize(("kind", "number"), [("rank_killed", signal.SIGKILL), ("rank_hung", signal.SIGSTOP)])
def test_a_simulated_fault_hits_the_given_rank_once(
    make_identity: MakeIdentity, sent: list[int], kind: str, number: int
) -> None:
    for rank in (0, 1):
        fault = simulated(make_identity(rank, 2), simulated_fault_type=kind, simulated_fault_rank=1)
        fault.step_begins(0)
        fault.step_begins(1)
        assert not fault.armed
    assert wait_for(lambda: list(sent)) == [number]


def test_a_random_fault_hits_one_rank_that_all_agree_on(
    make_identity: MakeIdentity, sent: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for run in range(5):
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", str(run))
        for rank in range(8):
            identity = dataclasses.replace(make_identity(rank, 8), directory=tmp_path / str(run))
            simulated(identity).step_begins(0)
    wait_for(lambda: len(sent) == 5)
    assert set(sent) <= {signal.SIGKILL, signal.SIGSTOP}


def test_a_random_fault_may_have_a_given_rank(make_identity: MakeIdentity, sent: list[int]) -> None:
    simulated(make_identity(2, 4), simulated_fault_rank=2).step_begins(0)
    (number,) = wait_for(lambda: list(sent))
    for rank in (0, 1, 3):
        simulated(make_identity(rank, 4), simulated_fault_rank=2).step_begins(0)
    assert sent == [number]
    assert number in (signal.SIGKILL, signal.SIGSTOP)


@pytest.mark.parametrize("later", [{"cycle": 1}, {"round": 1}, {"restart_count": 1}])
def test_a_simulated_fault_is_not_armed_after_the_first_start(
    make_identity: MakeIdentity, later: dict[str, int]
) -> None:
    assert simulated(make_identity()).armed
    assert not simulated(make_identity(**later)).armed


@pytest.mark.parametrize("field", DESCRIBED)
def test_a_described_fault_that_nobody_asks_for_is_named_once(
    make_identity: MakeIdentity, caplog: pytest.LogCaptureFixture, field: str
) -> None:
    for identity in (make_identity(0, 2), make_identity(1, 2), make_identity(0, 2, cycle=1)):
        assert not injector(identity, **{field: DESCRIBED[field]}).armed
    [message] = caplog.messages
    assert f"no effect without simulate_fault: {field}={DESCRIBED[field]!r}. Set simulate_fault=True" in message


@pytest.mark.parametrize("fields", [{}, {"simulate_fault": True, **DESCRIBED}, {"fault_script": "kill@0:3"}])
def test_nothing_is_said_of_a_fault_that_is_asked_for(
    make_identity: MakeIdentity, caplog: pytest.LogCaptureFixture, fields: dict[str, object]
) -> None:
    injector(make_identity(), **fields)
    assert not caplog.messages
