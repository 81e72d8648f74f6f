from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nemo_resiliency_plugins import contract
from nemo_resiliency_plugins.contract import Attempt, ExitCode, Reason, Verdict
from nemo_resiliency_plugins.errors import ConfigError

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
ODD = st.sampled_from(["", "%", "%41", "--", "--percent-encoded", "-m", "a b", "'", '"', "$HOME", "é", "a=b,c:d"])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT
VERDICT = Verdict(Reason.FINISHED, ExitCode.OK, 12, 0, "node1")


@given(st.lists(TEXT | ODD))
def test_arguments_arrive_as_they_were_sent(arguments: list[str]) -> None:
    assert contract.decode_arguments(contract.encode_arguments(arguments)) == arguments


@given(st.lists(TEXT | ODD, min_size=1))
def test_encoded_arguments_need_no_quoting_in_a_shell(arguments: list[str]) -> None:
    safe = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@+=:,./-_%~")
    assert all(argument and set(argument) <= safe for argument in contract.encode_arguments(arguments))


def test_plain_arguments_stay_readable() -> None:
    assert contract.encode_arguments(["train.py", "--lr=0.1"]) == ["--", "train.py", "--lr=0.1"]


@pytest.mark.parametrize("arguments", [["train.py", "%41"], ["train.py", "--", "x"], []])
def test_arguments_without_markers_pass_as_they_are(arguments: list[str]) -> None:
    assert contract.decode_arguments(arguments) == arguments


@given(SCALARS | st.lists(SCALARS))
@example("5")
@example("null")
@example('"quoted"')
def test_values_arrive_as_they_were_sent(value: object) -> None:
    assert contract.decode_value(contract.encode_value(value)) == value


def test_a_plain_string_is_sent_without_quotes() -> None:
    assert contract.encode_value("rank_hung") == "rank_hung"


def test_variables_of_a_plugin_become_its_fields() -> None:
    env = {"NRP_FAULT_TOLERANCE__WARMUP_STEPS": "7", "NRP_FAULT_TOLERANCE__FAULT_SCRIPT": "kill@1:2"}
    fields = {"warmup_steps": 7, "fault_script": "kill@1:2"}
    assert contract.overrides_from_env("fault_tolerance", {**env, "NRP_OTHER__X": "1"}) == fields


@pytest.mark.parametrize("text", ["", "[]", '{"fault_tolerance": 3}', "{"])
def test_a_config_file_of_another_form_is_an_error_that_names_it(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="NRP_CONFIG") as caught:
        contract.read_config_file(path)
    assert str(path) in str(caught.value)


def test_a_missing_config_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        contract.read_config_file(tmp_path / "config.json")


def test_an_attempt_is_named_by_job_restart_and_round() -> None:
    env = {"SLURM_JOB_ID": "17", "SLURM_RESTART_COUNT": "2", "NRP_ROUND": "3", "TORCHELASTIC_RESTART_COUNT": "4"}
    attempt = Attempt.from_env(env)
    assert (attempt.name, attempt.cycle) == ("17-2-3", 4)
    assert Attempt.from_env({**env, "NRP_JOB_ID": "own"}).job_id == "own"
    assert Attempt.from_env({}).name == "local-0-0"


def test_a_verdict_is_read_as_it_was_written(tmp_path: Path) -> None:
    VERDICT.write(tmp_path, Attempt())
    assert Verdict.read(tmp_path, Attempt()) == VERDICT


def test_a_verdict_belongs_to_one_attempt(tmp_path: Path) -> None:
    VERDICT.write(tmp_path, Attempt(round=1))
    assert Verdict.read(tmp_path, Attempt()) is None
    assert Verdict.read(tmp_path, Attempt(round=1, cycle=5)) == VERDICT


def test_writing_replaces_the_old_content_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    for text in ("old", "new"):
        contract.write_atomically(path, text)
    assert path.read_text() == "new"
    assert list(path.parent.iterdir()) == [path]


def test_a_failed_write_keeps_the_old_content_and_leaves_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "file"
    contract.write_atomically(path, "old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        contract.write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_events_are_read_file_by_file_without_a_line_that_a_crash_cut(tmp_path: Path) -> None:
    for rank in (1, 0):
        path = contract.events_path(tmp_path, Attempt(), rank)
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"rank": rank}) + '\n{"rank": ')
    assert list(contract.read_events(tmp_path)) == [{"rank": 0}, {"rank": 1}]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o007, 0o660)])
def test_what_is_written_may_be_read_by_whom_the_umask_lets(tmp_path: Path, umask: int, mode: int) -> None:
    former = os.umask(umask)
    try:
        contract.write_atomically(tmp_path / "file", "text")
    finally:
        os.umask(former)
    assert (tmp_path / "file").stat().st_mode & 0o777 == mode
