"""Which step a checkpoint belongs to, however the loop is left."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from nemo_resiliency_plugins import runtime
from nemo_resiliency_plugins.contract import Attempt, Verdict
from nemo_resiliency_plugins.errors import ConfigError
from nemo_resiliency_plugins.runtime.checkpoint.store import CheckpointStore
from tests.unit.conftest import open_checkpointer


@pytest.fixture
def nrp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NRP_DIR", str(tmp_path / "nrp"))
    return tmp_path / "nrp"


def state() -> dict[str, nn.Module]:
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    return {"model": model}


def add_one(objects: dict[str, nn.Module]) -> None:
    """A step: the weight counts the steps."""
    with torch.no_grad():
        objects["model"].weight += 1


def saved(root: Path) -> dict[int, float]:
    """Of each checkpoint, how many steps are in its state."""
    found = {}
    while steps := CheckpointStore(root, keep=9).committed():
        objects = state()
        open_checkpointer(root, objects, keep=9).resume()
        found[steps[-1]] = float(objects["model"].weight.detach())
        shutil.rmtree(CheckpointStore(root, keep=9).path(steps[-1]))
    return found


def test_a_save_inside_a_step_is_done_when_the_step_ends(tmp_path: Path) -> None:
    objects = state()
    with runtime.session() as session:
        for step in session.steps(session.attach(objects, tmp_path, keep=9), 6):
            add_one(objects)
            if step == 3:
                session.save()
    assert saved(tmp_path) == {4: 4.0, 6: 6.0}


def test_stop_ends_the_loop_after_the_step_and_finishes(tmp_path: Path, nrp: Path) -> None:
    objects = state()
    with runtime.session() as session:
        for step in session.steps(session.attach(objects, tmp_path / "c"), 100):
            add_one(objects)
            if step == 4:
                session.stop()
    assert saved(tmp_path / "c") == {5: 5.0}
    verdict = Verdict.read(nrp, Attempt())
    assert verdict is not None
    assert verdict.step == 5


def test_a_loop_that_was_left_saves_nothing_and_says_so(
    tmp_path: Path, nrp: Path, caplog: pytest.LogCaptureFixture
) -> None:
    objects = state()
    with runtime.session() as session:
        for _ in session.steps(session.attach(objects, tmp_path / "c"), 100):
            add_one(objects)
            session.save()
            break
    assert saved(tmp_path / "c") == {}
    assert "middle of step 0, use stop() instead of break; the checkpoint asked for in it was not" in caplog.text
    assert Verdict.read(nrp, Attempt()) is None


def test_a_second_loop_that_is_left_is_not_finished(nrp: Path) -> None:
    with runtime.session() as session:
        assert list(session.steps(0, 2)) == [0, 1]
        for _ in session.steps(2, 4):
            break
    assert Verdict.read(nrp, Attempt()) is None


@pytest.mark.parametrize("code", [None, 0])
def test_leaving_with_success_after_the_last_step_is_finished(nrp: Path, code: int | None) -> None:
    with pytest.raises(SystemExit), runtime.session() as session:
        assert list(session.steps(0, 2)) == [0, 1]
        raise SystemExit(code)
    assert Verdict.read(nrp, Attempt()) is not None


def test_the_verdict_of_another_run_in_the_same_directory_is_removed(nrp: Path) -> None:
    with runtime.session() as session:
        session.finish()
    with pytest.raises(LookupError), runtime.session():
        raise LookupError
    assert Verdict.read(nrp, Attempt()) is None


def test_a_session_serves_one_block_and_attaches_once(tmp_path: Path) -> None:
    session = runtime.session()
    with pytest.raises(ConfigError, match="with block"):
        next(session.steps(0, 1))
    with session:
        session.attach(state(), tmp_path)
        with pytest.raises(ConfigError, match="once"):
            session.attach(state(), tmp_path)
    with pytest.raises(ConfigError, match="twice"), session:
        pytest.fail("entered twice")


def test_steps_begin_where_the_state_is(tmp_path: Path) -> None:
    with runtime.session() as session:
        assert len(list(session.steps(session.attach(state(), tmp_path), 3))) == 3
    with runtime.session() as session:
        session.attach(state(), tmp_path)
        with pytest.raises(ConfigError, match="Start with what attach"):
            next(session.steps(0, 5))


def test_relative_directories_stay_where_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with runtime.session() as session:
        start = session.attach(state(), "checkpoints")
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        assert list(session.steps(start, 1)) == [0]
    assert CheckpointStore(tmp_path / "checkpoints", keep=1).committed() == [1]


@pytest.mark.parametrize("loss", [torch.ones(2), "1.0"])
def test_a_loss_is_one_number(loss: object) -> None:
    with runtime.session() as session, pytest.raises(ConfigError, match="one number"):
        session.observe(loss)
