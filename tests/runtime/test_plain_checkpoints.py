"""Checkpoints in a training loop of the user's own: whole, of both tiers, and exact."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from nemo_resiliency_plugins import ConfigError, runtime
from nemo_resiliency_plugins.runtime.checkpoint.store import CheckpointStore
from tests.harness import JOB_ID
from tests.ranks import run


def train(steps: int, every: int, local_every: int | None = None, finalize: bool = True) -> None:
    """Each step notes the weights; a run that is cut leaves without a word."""
    root = Path(os.environ["TEST_ROOT"])
    rank = dist.get_rank()
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(rank)
    local = {} if local_every is None else {"non_persistent_local_ckpt_dir": str(root / f"local-{rank}")}
    config = runtime.CheckpointConfig(async_save=True, non_persistent_save_interval=local_every, **local)
    state = {"model": model, "optimizer": optimizer}
    with runtime.Checkpoints(state, root / "checkpoints", every, config=config) as checkpoints:
        step = checkpoints.restore()
        note(rank, f"from {step}")
        while step < steps:
            optimizer.zero_grad()
            model(torch.ones(4, 8)).square().mean().backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
            step += 1
            if checkpoints.should_save(step):
                checkpoints.save(step)
        if finalize:
            checkpoints.finalize(step)
    note(rank, " ".join(f"{parameter.double().sum().item():.17g}" for parameter in model.parameters()))


def note(rank: int, text: str) -> None:
    with Path(os.environ["TEST_ROOT"], f"said-{rank}.txt").open("a") as file:
        file.write(f"0 {text}\n")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    return run(tmp_path_factory.mktemp("whole"), 2, train, 10, 0).said()[-1][1]


def test_a_loop_that_goes_on_from_the_global_tier_ends_alike(tmp_path: Path, undisturbed: str) -> None:
    first = run(tmp_path, 2, train, 6, 4)
    assert CheckpointStore(first.checkpoints, keep=2).committed() == [4, 6]
    assert (first.nrp / f"progress-{JOB_ID}").read_text() == "6\n"
    second = run(tmp_path, 2, train, 10, 4)
    assert second.said()[2:] == [(0, "from 6"), (0, undisturbed)]
    assert "Scheduling async checkpoint save: checkpoint of step 8" in second.log


def test_a_loop_that_goes_on_from_the_local_tier_ends_alike(tmp_path: Path, undisturbed: str) -> None:
    run(tmp_path, 2, train, 9, 4, 3, False)
    second = run(tmp_path, 2, train, 10, 4, 3)
    assert second.said()[2:] == [(0, "from 9"), (0, undisturbed)]
    assert CheckpointStore(second.checkpoints, keep=9).committed() == [8, 10]


def test_the_last_step_is_saved_once(tmp_path: Path) -> None:
    group = run(tmp_path, 2, train, 8, 4)
    assert [event["step"] for event in group.events("checkpoint", rank=0)] == [4, 8]


def test_a_bad_value_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"attach.keep=0"):
        runtime.Checkpoints({"model": nn.Linear(1, 1)}, tmp_path, keep=0)


def test_half_a_local_tier_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    half = runtime.CheckpointConfig(non_persistent_save_interval=3)
    with runtime.Checkpoints({"model": nn.Linear(1, 1)}, tmp_path, config=half):
        assert "non_persistent_local_ckpt_dir is not set" in caplog.text
