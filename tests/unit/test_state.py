"""What is saved can be restored, or is refused before anything is trained."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from nemo_resiliency_plugins.errors import CheckpointError, ConfigError
from nemo_resiliency_plugins.runtime.checkpoint.manager import DcpCheckpointer
from nemo_resiliency_plugins.runtime.checkpoint.state import TrainingState
from tests.unit.conftest import open_checkpointer


class WithUnusedHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.unused = nn.Linear(2, 2), nn.Linear(2, 2)
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        result: torch.Tensor = self.body(x)
        return result


class Saying:
    """An object with a state of the test's own."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


Make = Callable[[], tuple[nn.Module, torch.optim.Optimizer]]


def adamw() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = WithUnusedHead()
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def momentum() -> tuple[nn.Module, torch.optim.Optimizer]:
    model, _ = adamw()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()


def checkpointer(root: Path, **state: Any) -> DcpCheckpointer:
    return open_checkpointer(root, state)


@pytest.mark.parametrize("make", [adamw, momentum], ids=["adamw", "momentum"])
def test_a_head_without_gradients_is_resumed_from(tmp_path: Path, make: Make) -> None:
    model, optimizer = make()
    train(model, optimizer, 3)
    checkpointer(tmp_path, model=model, optimizer=optimizer).save(3, None)
    again, its_optimizer = make()
    assert checkpointer(tmp_path, model=again, optimizer=its_optimizer).resume() == 3
    for pair in ((model, optimizer), (again, its_optimizer)):
        train(*pair, 3)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), again.state_dict().values(), strict=True))


def test_another_optimizer_is_said_to_be_the_reason(tmp_path: Path) -> None:
    model, optimizer = adamw()
    train(model, optimizer, 1)
    checkpointer(tmp_path, model=model, optimizer=optimizer).save(1, None)
    again, other = momentum()
    train(again, other, 1)
    with pytest.raises(CheckpointError, match="can be resumed from"):
        checkpointer(tmp_path, model=again, optimizer=other).resume()


@pytest.mark.parametrize(
    "value",
    [numpy.zeros(2), numpy.float64(1), datetime.date(2026, 1, 1), Path("x"), {"deep": [numpy.int64(3)]}],
    ids=lambda value: type(value).__name__,
)
def test_a_state_that_could_not_be_read_again_is_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(ConfigError, match=r"attach.state\['loader'\].*plain types.*tolist"):
        checkpointer(tmp_path, loader=Saying({"position": value}))


class Extra(nn.Linear):
    """A module that keeps more than tensors."""

    extra: Any = None

    def get_extra_state(self) -> Any:
        return self.extra

    def set_extra_state(self, state: Any) -> None:
        self.extra = state


@pytest.mark.parametrize("good_saves", [0, 2])
@pytest.mark.parametrize("name", ["loader", "model", "optimizer"])
def test_a_state_that_becomes_unreadable_later_is_no_checkpoint(tmp_path: Path, name: str, good_saves: int) -> None:
    model, loader = Extra(2, 2), Saying({"t": torch.ones(2)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    saving = checkpointer(tmp_path, model=model, optimizer=optimizer, loader=loader)
    for step in range(1, good_saves + 1):
        saving.save(step, None)
    bad = datetime.date(2026, 1, 1)
    loader.state, model.extra = {"day": bad} if name == "loader" else {}, bad if name == "model" else None
    optimizer.param_groups[0]["since"] = bad if name == "optimizer" else None
    with pytest.raises(CheckpointError, match=rf"'{name}' could not be resumed from: .*plain types.*dates and paths"):
        saving.save(9, None)
    assert [path.name for path in sorted(tmp_path.glob("step_*"))] == [f"step_{n + 1:09d}" for n in range(good_saves)]


def test_a_learning_rate_of_numpys_is_resumed_from(tmp_path: Path) -> None:
    model, optimizer = adamw()
    saving = checkpointer(tmp_path, model=model, optimizer=optimizer)
    train(model, optimizer, 1)
    optimizer.param_groups[0]["lr"] = 0.5 * (1 + numpy.cos(0.3))
    saving.save(1, None)
    again, its_optimizer = adamw()
    assert checkpointer(tmp_path, model=again, optimizer=its_optimizer).resume() == 1
    assert its_optimizer.param_groups[0]["lr"] == float(optimizer.param_groups[0]["lr"])


@pytest.mark.parametrize("state", [{}, None, [1, (2, "x")], {"t": torch.ones(2)}, {"nested": {"a": b"bytes"}}])
def test_plain_states_come_back(tmp_path: Path, state: Any) -> None:
    checkpointer(tmp_path, loader=Saying(state)).save(1, None)
    again = Saying("else")
    checkpointer(tmp_path, loader=again).resume()
    assert str(again.state) == str(state)


def test_optimizers_that_cannot_be_restored_are_refused() -> None:
    model = nn.Linear(2, 2)
    empty = torch.optim.AdamW([{"params": model.parameters()}, {"params": []}])
    with pytest.raises(ConfigError, match="empty parameter group"):
        TrainingState({"model": model, "optimizer": empty})
    with pytest.raises(ConfigError, match="LBFGS"):
        TrainingState({"model": model, "optimizer": torch.optim.LBFGS(model.parameters())})


def test_a_module_without_parameters_is_nothing_to_save(tmp_path: Path) -> None:
    checkpointer(tmp_path, loss=nn.MSELoss()).save(1, None)
    assert checkpointer(tmp_path, loss=nn.MSELoss()).resume() == 1


def test_buffers_are_kept_for_each_rank() -> None:
    content = TrainingState({"model": WithUnusedHead()}).gather()
    assert "model.count" not in content.tensors
    assert list(content.host["model"]) == ["count"]
