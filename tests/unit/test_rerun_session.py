"""Result validation in a session of one rank: what is refused, what is put back, how it ends."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from nemo_resiliency_plugins import runtime
from nemo_resiliency_plugins.contract import ENV_NODE_RUN, Attempt, Reason, Verdict, read_events
from nemo_resiliency_plugins.errors import ConfigError, NotWorkingError
from nemo_resiliency_plugins.runtime.rerun.before import LARGE_BUFFER, Before
from nemo_resiliency_plugins.runtime.rerun.replay import Done, Loss

NAN = float("nan")


def config(**fields: Any) -> runtime.RerunStateMachineConfig:
    return runtime.RerunStateMachineConfig(**{"rerun_mode": "validate_results", **fields})


def one_step(root: Path, function: Callable[..., Any], *micro_batches: Any, **fields: Any) -> Any:
    """The loss that ``checked`` gives for it."""
    losses = []
    with runtime.session(config(**fields)) as session:
        session.attach({"model": nn.Linear(1, 1)}, root)
        for _ in session.steps(0, 1):
            losses.append(session.checked(function, *micro_batches))
    return losses[0]


def test_the_loss_is_that_of_the_function_or_the_sum_over_the_micro_batches(tmp_path: Path) -> None:
    assert one_step(tmp_path / "a", lambda_free, 2.0) == 2.0
    assert one_step(tmp_path / "b", lambda_free, 2.0, 3.0, 4.0) == 9.0
    assert one_step(tmp_path / "c", several) == 6.0
    assert one_step(tmp_path / "d", lambda_free, 2.0, 3.0, rerun_mode="disabled") == 5.0


def test_a_rank_without_a_loss_gives_none(tmp_path: Path) -> None:
    def a_stage_in_the_middle() -> list[torch.Tensor]:
        return []

    assert one_step(tmp_path, a_stage_in_the_middle) is None


def test_what_is_not_checked_is_trained_on(tmp_path: Path) -> None:
    loss = one_step(tmp_path, lambda_free, NAN, check_for_nan_in_loss=False, check_for_spiky_loss=True)
    assert math.isnan(loss)


def test_a_scaler_makes_inf_on_purpose(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    model, scaler = nn.Linear(1, 1), torch.amp.GradScaler("cpu", init_scale=1e38)

    def forward_backward() -> torch.Tensor:
        loss = model(torch.full((1, 1), 100.0)).sum()
        scaler.scale(loss).backward()
        return loss

    with runtime.session(config()) as session:
        session.attach({"model": model, "scaler": scaler}, tmp_path)
        for _ in session.steps(0, 1):
            session.checked(forward_backward)
    assert model.weight.grad is not None
    assert math.isinf(float(model.weight.grad))
    assert "gradients are not checked: the GradScaler" in caplog.text


def lambda_free(value: float) -> torch.Tensor:
    return torch.full((1, 1), value, requires_grad=True)


def several() -> list[torch.Tensor]:
    return [lambda_free(1.0), lambda_free(5.0)]


@pytest.mark.parametrize("mode", ["validate_results", "report_determinism_stats", "disabled"])
@pytest.mark.parametrize("returned", [None, "1", torch.ones(2), [torch.ones(2)]])
def test_a_function_that_gives_no_loss_is_refused(tmp_path: Path, mode: str, returned: object) -> None:
    def forward_backward() -> object:
        return returned

    with pytest.raises(ConfigError, match="must return the loss of its micro-batch"):
        one_step(tmp_path, forward_backward, rerun_mode=mode)


def test_a_lambda_is_refused_because_its_variables_may_change(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="present values of its variables"):
        one_step(tmp_path, lambda: torch.ones(()))


def test_outside_the_loop_there_is_nothing_to_check() -> None:
    with runtime.session(config()) as session, pytest.raises(ConfigError, match="called outside the loop"):
        session.checked(lambda_free, 1.0)


def test_a_step_that_was_not_checked_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with runtime.session(config()) as session:
        session.attach({"model": nn.Linear(1, 1)}, tmp_path)
        list(session.steps(0, 3))
    assert caplog.text.count("a step has ended without checked()") == 1


@pytest.mark.parametrize(
    ("fields", "state", "said"),
    [
        ({}, {"model": nn.Linear(1, 1)}, r"without checked\(\)"),
        ({"check_for_nan_in_loss": False, "check_for_nan_in_gradients": False}, None, "all checks are off"),
        ({"rerun_mode": "report_determinism_stats"}, {"scheduler": nn.ParameterDict()}, "stats were asked for"),
    ],
)
def test_what_is_not_validated_is_an_error_under_strict(
    tmp_path: Path, fields: dict[str, Any], state: dict[str, Any] | None, said: str
) -> None:
    with pytest.raises(NotWorkingError, match=said), runtime.session(config(**fields), strict=True) as session:
        session.attach(state or {"model": nn.Linear(1, 1)}, tmp_path)
        list(session.steps(0, 1))


class Everything(nn.Module):
    """A step that changes a buffer in place, replaces another one, and draws from all generators."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("last", torch.zeros(()))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        self.count += 1
        self.last = value.mean().detach()
        noise = torch.rand(4) * random.random() * np.random.random()
        return (self.weight * value * noise * self.count).sum() + self.last


def test_a_repetition_begins_where_the_first_run_began() -> None:
    model = Everything()
    model.weight.grad = torch.full((4,), 2.0)
    before, count = Before([model]), model.count
    seen = []
    for _ in range(2):  # the second time with copies of buffers that are still current
        before.capture()
        for _ in range(3):
            before.restore()
            assert model.count is count
            loss = model(torch.ones(4))
            loss.backward()
            seen.append((float(loss.detach()), float(model.count), model.weight.grad.tolist()))
    assert seen[0] == seen[1] == seen[2] != seen[3] == seen[4] == seen[5]


class Buffers(nn.Module):
    """Buffers whose changes torch does not count, cannot count or that are not there yet."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2)
        self.register_buffer("cache", None)
        self.register_buffer("table", torch.zeros(LARGE_BUFFER))
        with torch.inference_mode():
            self.register_buffer("evaluated", torch.ones(2))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.cache = torch.ones(()) if self.cache is None else self.cache + 1
        self.table += 1
        self.evaluated = self.evaluated * 2
        return self.norm(rows).sum() + self.cache + self.table[0] + self.evaluated[0]

    def contents(self) -> list[Any]:
        return [self.norm.running_mean.tolist(), self.norm.running_var.tolist(), self.cache, float(self.table[-1])]


def test_buffers_are_put_back_whose_changes_are_not_counted() -> None:
    model = Buffers()
    before = Before([model])
    before.capture()
    for _ in range(2):
        before.capture()
        first = model.contents()
        losses = set()
        for value in (1.0, NAN, 1.0):
            before.restore()
            assert model.contents() == first
            losses.add(str(model(torch.tensor([[value, 2.0], [3.0, 4.0]])).detach()))
        assert len(losses) == 2, "that of NaN is one"
        assert math.isfinite(float(model.norm.running_mean[0]))


def test_the_loss_of_one_micro_batch_is_not_copied() -> None:
    loss = torch.ones(())
    assert Done([Loss(loss)]).loss is loss


@pytest.mark.parametrize(("node_run", "code"), [(None, 16), ("1-0-0-node0", 0)])
def test_the_code_is_for_those_who_read_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, node_run: str | None, code: int
) -> None:
    monkeypatch.setenv("NRP_DIR", str(tmp_path / "nrp"))
    if node_run is not None:
        monkeypatch.setenv(ENV_NODE_RUN, node_run)
    with pytest.raises(SystemExit) as caught:
        one_step(tmp_path / "checkpoints", lambda_free, 1.0, NAN)
    assert caught.value.code == code
    verdict = Verdict.read(tmp_path / "nrp", Attempt())
    assert verdict is not None
    assert (verdict.reason, verdict.code, verdict.step) == (Reason.RERUN_ELSEWHERE, 16, 0)
    names = [event["event"] for event in read_events(tmp_path / "nrp")]
    assert "results_stop" in names
    assert not {"session_failed", "finished"} & set(names)


def test_a_file_about_a_suspect_that_cannot_be_read_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "rerun_suspect.json").write_text(json.dumps({"step": 0, "rank": 0}))
    assert one_step(tmp_path, lambda_free, 1.0) == 1.0
    assert "rerun_suspect.json cannot be read" in caplog.text


def test_a_suspect_of_a_step_that_is_behind_is_forgotten(tmp_path: Path) -> None:
    fields = {"step": -1, "rank": 0, "micro_batch": 0, "kind": "", "values": [], "places": [["node", "cpu"]]}
    (tmp_path / "rerun_suspect.json").write_text(json.dumps(fields))
    one_step(tmp_path, lambda_free, 1.0)
    assert not (tmp_path / "rerun_suspect.json").exists()


def test_weights_with_nan_in_the_local_tier_are_skipped_for_the_global_one(tmp_path: Path) -> None:
    local = runtime.CheckpointConfig(
        non_persistent_local_ckpt_dir=str(tmp_path / "local"), non_persistent_save_interval=2
    )
    model = nn.Linear(1, 1)
    with pytest.raises(ZeroDivisionError), runtime.session([config(), local]) as session:
        session.attach({"model": model}, tmp_path / "checkpoints", every=3)
        for step in session.steps(0, 10):
            session.checked(lambda_free, 1.0)
            if step == 3:
                nn.init.constant_(model.weight, NAN)
            1 // (4 - step)
    with runtime.session([config(), local]) as session:
        assert session.attach({"model": model}, tmp_path / "checkpoints", every=3) == 3
    assert torch.isfinite(model.weight).all()


def test_the_hook_on_the_model_is_gone_with_the_session(tmp_path: Path) -> None:
    model = nn.Linear(1, 1)
    with runtime.session(config()) as session:
        session.attach({"model": model}, tmp_path)
        assert model.bias._backward_hooks
    assert not model.bias._backward_hooks
