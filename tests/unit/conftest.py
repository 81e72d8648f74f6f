from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from nemo_resiliency_plugins.config import CheckpointConfig
from nemo_resiliency_plugins.contract import Attempt
from nemo_resiliency_plugins.runtime.agreement import Ranks
from nemo_resiliency_plugins.runtime.checkpoint.manager import DcpCheckpointer
from nemo_resiliency_plugins.runtime.checkpoint.reporting import Reporter
from nemo_resiliency_plugins.runtime.events import EventLog
from nemo_resiliency_plugins.runtime.identity import Identity
from tests.harness import FOREIGN

MakeIdentity = Callable[..., Identity]


@pytest.fixture(autouse=True)
def unmanaged(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of a launcher or a job reaches a test."""
    for name in [name for name in os.environ if name.startswith(FOREIGN)]:
        monkeypatch.delenv(name)


@pytest.fixture
def make_identity(tmp_path: Path) -> MakeIdentity:
    def make(rank: int = 0, world_size: int = 1, **attempt: int) -> Identity:
        return Identity(rank, world_size, "node1", Attempt("job", **attempt), tmp_path / "nrp", launched=True)

    return make


def open_checkpointer(root: Path, state: Mapping[str, Any], *, keep: int = 2, **fields: Any) -> DcpCheckpointer:
    """That of a process without a process group, which reports to nobody."""
    reporter = Reporter(0, EventLog(None, Attempt(), 0), lambda step, seconds: None)
    return DcpCheckpointer(root, state, Ranks(), reporter, keep=keep, config=CheckpointConfig(**fields))
