"""Faults that somebody asks for while the job runs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from nemo_resiliency_plugins.config.fault_request import FaultRequest, request_path
from nemo_resiliency_plugins.contract import read_events
from nemo_resiliency_plugins.errors import ConfigError
from nemo_resiliency_plugins.runtime.events import EventLog
from nemo_resiliency_plugins.runtime.faults import InjectedError
from nemo_resiliency_plugins.runtime.progress import INTERVAL_S, Progress
from nemo_resiliency_plugins.runtime.requests import RequestedFaults
from tests.unit.conftest import MakeIdentity


@dataclasses.dataclass
class Setting:
    """A rank of a job with a clock of its own."""

    requests: RequestedFaults
    directory: Path
    now: list[float]
    slept: list[float]

    def ask(self, **fields: object) -> Path:
        request = FaultRequest(rank=1, **fields)  # type: ignore[arg-type]
        path = request_path(self.directory, 1)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(request.encode())
        return path

    def events(self) -> list[tuple[str, str]]:
        return [(event["event"], event["kind"]) for event in read_events(self.directory)]


@pytest.fixture
def rank(make_identity: MakeIdentity) -> Setting:
    return setting(make_identity)


def setting(make_identity: MakeIdentity, world_size: int = 2) -> Setting:
    identity = make_identity(1, world_size)
    assert identity.directory is not None
    now, slept = [0.0], []
    log = EventLog(identity.directory, identity.attempt, 1)
    requests = RequestedFaults(identity, log, clock=lambda: now[0], sleep=slept.append)
    return Setting(requests, identity.directory, now, slept)


def test_an_exception_is_raised_once(rank: Setting) -> None:
    path = rank.ask(kind="exception")
    with pytest.raises(InjectedError, match="step 3"):
        rank.requests.step_begins(3)
    assert not path.exists()
    rank.now[0] += 10
    rank.requests.step_begins(4)
    assert rank.events() == [("fault_injected", "exception")]


def test_slow_lasts_for_its_steps(rank: Setting) -> None:
    rank.ask(kind="slow", seconds=0.5, steps=3)
    for step in range(5):
        rank.requests.step_begins(step)
    assert rank.slept == [0.5] * 3


def test_nan_comes_from_the_model_once(rank: Setting) -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(4, 3), torch.nn.Linear(3, 2))
    rank.requests.attached([model])
    rank.ask(kind="nan")
    rank.requests.step_begins(0)
    first, second = (model(torch.tensor([1])).sum() for _ in range(2))
    assert first.isnan() and second.isfinite()
    assert not [module for module in model.modules() if module._forward_hooks]


def test_nan_is_refused_where_nothing_was_attached(rank: Setting) -> None:
    rank.ask(kind="nan")
    rank.requests.step_begins(0)
    assert rank.events() == [("fault_refused", "nan")]


def test_a_file_that_cannot_be_read_is_a_warning(rank: Setting, caplog: pytest.LogCaptureFixture) -> None:
    rank.ask(kind="slow").write_text('{"kind": "rm -rf"}')
    rank.requests.step_begins(0)
    assert "a requested fault is not injected" in caplog.text
    assert not request_path(rank.directory, 1).exists()


@pytest.mark.parametrize(("world_size", "interval_s"), [(2, 1.0), (1000, 10.0)])
def test_the_job_looks_seldom_however_large_it_is(
    make_identity: MakeIdentity, world_size: int, interval_s: float
) -> None:
    rank = setting(make_identity, world_size)
    rank.requests.step_begins(0)
    rank.ask(kind="slow", steps=1)
    rank.now[0] = interval_s - 0.01
    rank.requests.step_begins(1)
    assert rank.slept == []
    rank.now[0] = interval_s
    rank.requests.step_begins(2)
    assert rank.slept == [1.0]


@pytest.mark.parametrize("fields", [{"kind": "kill"}, {"kind": "slow", "seconds": 0}, {"kind": "nan", "steps": -1}])
def test_what_cannot_be_asked_for_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        FaultRequest(rank=0, **fields)  # type: ignore[arg-type]


def test_progress_is_told_by_rank_0_at_a_distance(make_identity: MakeIdentity) -> None:
    now = [0.0]
    for number in (0, 1):
        identity = make_identity(number, 2)
        progress = Progress(identity, EventLog(identity.directory, identity.attempt, number), clock=lambda: now[0])
        for step in range(100):
            now[0] += INTERVAL_S / 40
            progress.step_ends(step)
    assert identity.directory is not None
    assert [(event["rank"], event["step"]) for event in read_events(identity.directory)] == [(0, 40), (0, 80)]
