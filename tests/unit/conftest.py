from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from nemo_resiliency_plugins.contract import Attempt
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
