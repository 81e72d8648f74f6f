from __future__ import annotations

import dataclasses
import logging
import re
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from nemo_resiliency_plugins import runtime
from nemo_resiliency_plugins.config import RerunStateMachineConfig
from nemo_resiliency_plugins.contract import Attempt, Reason, Verdict, read_events
from nemo_resiliency_plugins.errors import CheckpointError, ConfigError, NotWorkingError
from nemo_resiliency_plugins.runtime.checkpoint import checksums
from nemo_resiliency_plugins.runtime.checkpoint.store import CheckpointStore


@dataclasses.dataclass
class Place:
    """A directory with a training that is cut and goes on."""

    root: Path

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def store(self) -> CheckpointStore:
        return CheckpointStore(self.checkpoints, keep=2)

    @property
    def verdict(self) -> Verdict | None:
        return Verdict.read(self.root / "nrp", Attempt())

    def train(self, stop: int, *, every: int = 4, keep: int = 2) -> Training:
        """A fresh process would build the same objects anew and go on."""
        with runtime.session() as session:
            training = Training()
            start = session.attach(training.state, self.checkpoints, every=every, keep=keep)
            for step in session.steps(start, stop):
                training.step(step)
                session.observe(torch.tensor(0.5))
        return training

    def events(self, name: str) -> list[dict[str, Any]]:
        return [event for event in read_events(self.root / "nrp") if event["event"] == name]


class Training:
    def __init__(self) -> None:
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=1, gamma=0.9)
        self.ran: list[int] = []

    @property
    def state(self) -> Mapping[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}

    def step(self, step: int) -> None:
        self.ran.append(step)
        self.optimizer.zero_grad()
        self.model(torch.full((8, 4), float(step))).square().mean().backward()
        self.optimizer.step()
        self.scheduler.step()

    @property
    def weights(self) -> list[float]:
        return torch.cat([value.flatten() for value in self.model.state_dict().values()]).tolist()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("NRP_DIR", str(tmp_path / "nrp"))
    return Place(tmp_path)


def test_a_training_that_was_cut_ends_as_one_that_was_not(place: Place, tmp_path: Path) -> None:
    expected = Place(tmp_path / "undisturbed").train(12)
    place.train(8)
    resumed = place.train(12)
    assert resumed.ran == [8, 9, 10, 11]
    assert resumed.weights == expected.weights


def test_a_scheduler_and_its_learning_rate_are_restored(place: Place) -> None:
    cut = place.train(8)
    resumed = place.train(8)
    assert resumed.scheduler.last_epoch == cut.scheduler.last_epoch == 8
    assert resumed.optimizer.param_groups[0]["lr"] == cut.optimizer.param_groups[0]["lr"]


def test_a_first_start_begins_at_step_0(place: Place) -> None:
    assert place.train(2).ran == [0, 1]
    assert place.events("resumed")[0]["step"] is None


def test_the_last_step_is_saved_once(place: Place) -> None:
    place.train(8)
    place.train(8)
    assert [(event["step"], event["written"]) for event in place.events("checkpoint")] == [(4, True), (8, True)]
    assert place.store.committed() == [4, 8]


def test_a_step_off_the_rhythm_is_saved_at_the_end(place: Place) -> None:
    place.train(6)
    assert place.store.committed() == [4, 6]


def test_without_a_rhythm_only_the_end_is_saved(place: Place) -> None:
    place.train(6, every=0)
    assert place.store.committed() == [6]


def test_an_explicit_save_at_a_saved_step_writes_nothing(place: Place) -> None:
    with runtime.session() as session:
        training = Training()
        for step in session.steps(session.attach(training.state, place.checkpoints, every=2), 2):
            training.step(step)
        session.save()
        session.save()
    assert len(place.events("checkpoint")) == 1


def test_the_loss_of_the_step_is_noted_with_its_checkpoint(place: Place) -> None:
    place.train(4)
    assert place.events("checkpoint")[0]["loss"] == 0.5


def test_a_truncated_newest_checkpoint_is_passed_over_with_a_warning(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.train(8)
    truncate(place.store.path(8))
    assert place.train(9).ran == [4, 5, 6, 7, 8]
    assert f"skipped a checkpoint: {place.store.path(8)}" in caplog.text


def test_a_truncated_checkpoint_is_written_anew_when_its_step_is_reached_again(place: Place) -> None:
    place.train(8)
    truncate(place.store.path(8))
    place.train(8)
    assert place.store.newest_whole() == (8, [])


@pytest.mark.parametrize("name", ["__0_0.distcp", ".metadata"])
@pytest.mark.parametrize("noticed", ["by its checksum", "by loading it"])
def test_a_newest_checkpoint_with_damaged_content_is_passed_over_with_a_warning(
    place: Place, caplog: pytest.LogCaptureFixture, name: str, noticed: str
) -> None:
    whole = place.train(8)
    path = place.store.path(8) / name
    path.write_bytes(b"\0" * path.stat().st_size)
    if noticed == "by loading it":
        files = [place.store.path(8) / other for other in ("__0_0.distcp", ".metadata")]
        place.store.commit(8, checksums.of_files(files), world_size=1)
    again = place.train(8)
    assert again.ran == [4, 5, 6, 7]
    assert f"skipped a checkpoint: {place.store.path(8)}: " in caplog.text
    assert noticed == "by loading it" or f"the content of {path} has changed" in caplog.text
    assert all(torch.equal(*pair) for pair in zip(whole.model.parameters(), again.model.parameters(), strict=True))


def test_one_flipped_bit_is_found(place: Place) -> None:
    place.train(8)
    flip(place.store.path(8) / "__0_0.distcp")
    assert place.train(8).ran == [4, 5, 6, 7]


def test_retention_keeps_what_was_resumed_from_while_a_newer_one_is_damaged(place: Place) -> None:
    place.train(8, keep=1)
    place.train(12, keep=2)
    flip(place.store.path(12) / "__0_0.distcp")
    assert place.train(9, every=9, keep=1).ran == [8]
    assert place.store.committed() == [9, 12]
    assert place.train(9, keep=1).ran == []


def test_nothing_usable_is_an_error_and_not_step_0(place: Place) -> None:
    place.train(8)
    for step in (4, 8):
        truncate(place.store.path(step))
    with pytest.raises(CheckpointError, match=r"(?s)can be resumed from.*step_000000008.*step_000000004"):
        place.train(12)


def test_the_leftover_of_a_cut_save_is_replaced_with_a_warning(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.train(4)
    place.store.prepare(8)
    (place.store.path(8) / "half").write_text("x")
    assert place.train(8).ran == [4, 5, 6, 7]
    assert f"{place.store.path(8)} was left by a save that did not finish" in caplog.text
    assert place.store.newest_whole() == (8, [])


def test_only_as_many_checkpoints_as_asked_for_are_kept(place: Place) -> None:
    place.train(12, every=2, keep=3)
    assert place.store.committed() == [8, 10, 12]


def test_a_format_of_the_users_own_is_saved_and_loaded_through_their_functions(tmp_path: Path) -> None:
    calls: list[tuple[str, int]] = []
    functions: dict[str, Any] = {
        "save": lambda step: calls.append(("save", step)),
        "load": lambda step: calls.append(("load", step)),
        "latest": lambda: 3,
    }
    with runtime.session() as session:
        start = session.attach(every=2, **functions)
        assert list(session.steps(start, 5)) == [3, 4]
    assert calls == [("load", 3), ("save", 4), ("save", 5)]


@pytest.mark.parametrize("given", [{}, {"state": {}}, {"directory": "x"}, {"save": print, "load": print}])
def test_attach_takes_one_of_two_whole_sets(given: dict[str, Any]) -> None:
    with runtime.session() as session, pytest.raises(ConfigError, match="takes state with a directory, or all of"):
        session.attach(**given)


@pytest.mark.parametrize(("name", "value"), [("every", -1), ("every", True), ("every", 2.0), ("keep", 0)])
def test_attach_refuses_bad_numbers(place: Place, name: str, value: object) -> None:
    with runtime.session() as session, pytest.raises(ConfigError, match=rf"attach\.{name}"):
        session.attach({"model": nn.Linear(1, 1)}, place.checkpoints, **{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("state", "rule"),
    [
        ({"step": 3}, "needs state_dict"),
        ({"a.b": nn.Linear(1, 1)}, "without dots"),
        ({"rng": nn.Linear(1, 1)}, "not 'rng'"),
        ({"optimizer": torch.optim.SGD(nn.Linear(1, 1).parameters())}, "must be those of one module in state"),
    ],
)
def test_attach_refuses_what_it_cannot_save(place: Place, state: dict[str, Any], rule: str) -> None:
    with runtime.session() as session, pytest.raises(ConfigError, match=rule):
        session.attach(state, place.checkpoints)


def test_several_ranks_need_a_process_group(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="Call init_process_group"):
        place.train(1)


@pytest.mark.parametrize("bounds", [(-1, 2), (0, 2.0), (True, 3)])
def test_steps_are_whole_numbers(bounds: tuple[Any, Any]) -> None:
    with runtime.session() as session, pytest.raises(ConfigError, match=r"session\.steps"):
        next(iter(session.steps(*bounds)))


def test_settle_needs_attached_modules() -> None:
    with runtime.session() as session, pytest.raises(ConfigError, match=r"session\.settle"):
        session.settle(lambda: None)


def test_settle_leaves_no_trace(place: Place) -> None:
    with runtime.session() as session:
        training = Training()
        model = nn.Sequential(training.model, nn.BatchNorm1d(1))
        session.attach({"model": model}, place.checkpoints)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        generator = torch.get_rng_state()
        session.settle(lambda: model(torch.ones(8, 4)).sum().backward())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), generator)


def test_a_completed_loop_is_a_finished_verdict(place: Place) -> None:
    place.train(4)
    assert place.verdict is not None
    assert (place.verdict.reason, place.verdict.step) == (Reason.FINISHED, 4)


def test_a_loop_that_was_left_is_none_and_says_so(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    with runtime.session() as session:
        for _ in session.steps(0, 4):
            break
    assert place.verdict is None
    assert "the loop was left in the middle of step 0, use stop() instead of break" in caplog.text


def test_an_early_end_that_is_meant_is_a_finished_verdict(place: Place) -> None:
    with runtime.session() as session:
        for _ in session.steps(0, 4):
            session.finish()
            assert session.should_stop()
    assert place.verdict is not None


def test_an_error_is_no_verdict_and_is_not_masked(place: Place) -> None:
    with pytest.raises(ZeroDivisionError), runtime.session() as session:
        for step in session.steps(0, 4):
            1 // (step - 2)
    assert place.verdict is None
    [failed] = place.events("session_failed")
    assert (failed["exception"], failed["step"]) == ("ZeroDivisionError", 2)
    assert re.search(r"test_session\.py:\d+$", failed["where"])


def test_a_run_that_has_nothing_left_to_do_says_so(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    place.train(4)
    assert "nothing is left to do" not in caplog.text
    place.train(4)
    assert caplog.text.count("nothing is left to do: the checkpoint of step 4 has all 4 steps") == 1
    assert "resumed from the checkpoint of step 4" in caplog.text


def test_without_a_launcher_the_session_says_once_that_it_watches_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with runtime.session() as session, session.section("evaluation"), session.pause():
        list(session.steps(0, 3))
    assert caplog.text.count("watches nothing") == 1


def test_asking_for_what_cannot_work_is_a_warning_and_strictly_an_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = runtime.FaultToleranceConfig(enable_ft_package=True)
    with runtime.session(config):
        assert "hangs are not detected" in caplog.text
    monkeypatch.setenv("NRP_STRICT", "true")
    with pytest.raises(NotWorkingError, match=r"Start the ranks with ft_launcher"), runtime.session(config):
        pytest.fail("the session was opened")
    with runtime.session(config, strict=False) as session:
        assert session.stop_reason is None


def test_half_a_local_tier_is_a_warning_and_strictly_an_error(caplog: pytest.LogCaptureFixture) -> None:
    config = runtime.CheckpointConfig(non_persistent_local_ckpt_dir="/scratch/local")
    with runtime.session(config):
        assert "non_persistent_save_interval is not set" in caplog.text
    with pytest.raises(NotWorkingError, match="local checkpoint tier"), runtime.session(config, strict=True):
        pytest.fail("the session was opened")


def test_a_session_that_is_refused_leaves_the_signals_as_they_were() -> None:
    checks = dict.fromkeys(("check_for_nan_in_loss", "check_for_nan_in_gradients"), False)
    nothing = RerunStateMachineConfig(rerun_mode="validate_results", **checks)
    before = signal.getsignal(signal.SIGTERM)
    configs = [runtime.PreemptionConfig(exit_signal_handler=True), nothing]
    with pytest.raises(NotWorkingError, match="all checks are off"), runtime.session(configs, strict=True):
        pytest.fail("the session was opened")
    assert signal.getsignal(signal.SIGTERM) is before


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(directory: Path) -> None:
    for path in directory.glob("*.distcp"):
        path.write_bytes(path.read_bytes()[:-1])
