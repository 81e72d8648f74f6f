"""Signals, exit codes and numbers in the README and in docstrings are those of the code."""

from __future__ import annotations

import ast
import inspect
import re
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from nemo_resiliency_plugins import FaultTolerancePlugin, PreemptionPlugin
from nemo_resiliency_plugins.config import preemption
from nemo_resiliency_plugins.contract import ExitCode
from nemo_resiliency_plugins.plugins.fault_tolerance import CHECKPOINTING_TIMEOUT_S
from nemo_resiliency_plugins.runtime.preemption.leaving import STOPPED
from nemo_resiliency_plugins.runtime.timeouts import MIN_SAMPLES
from nemo_resiliency_plugins.slurm.policy import FACTS, policy_values
from tests.test_readme import ROOT, TEXT

SIGNALS = {name.removeprefix("SIG") for name in preemption.PREEMPTION_SIGNALS}
OTHER_SIGNALS = {"SIGKILL", "SIGSTOP", "SIGCONT", "SIGQUIT"}
"""With which ranks are ended, stopped and woken, and which a watch ignores."""
OF_BASH = {126, 127}
POLICY = {name: each.default for name, each in inspect.signature(policy_values).parameters.items()}


def docstrings() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "nemo_resiliency_plugins").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and (text := ast.get_docstring(node)):
                yield f"{path.name}:{getattr(node, 'name', '')}", text


DOCUMENTS = [("README.md", TEXT), *docstrings()]


def bare_signals(text: str) -> set[str]:
    """TERM, USR2 and the like, without what is part of a longer word."""
    return {word.removeprefix("SIG") for word in re.findall(r"(?<![\w@])[A-Z]+[0-9]?(?![\w@])", text)} & {
        each.name.removeprefix("SIG") for each in signal.Signals
    }


def test_signals_that_are_named_are_those_that_the_code_knows() -> None:
    known = {*preemption.PREEMPTION_SIGNALS, *OTHER_SIGNALS}
    named = {where: set(re.findall(r"\bSIG[A-Z0-9]+\b", text)) - {"SIGNALS"} for where, text in DOCUMENTS}
    assert {where: names - known for where, names in named.items() if names - known} == {}


def test_the_choices_of_the_preemption_signal_are_those_of_the_code() -> None:
    [row] = re.findall(r"^\| `signal` \|.*$", TEXT, flags=re.MULTILINE)
    [line] = re.findall(r"^\s+signal: .*$", PreemptionPlugin.__doc__ or "", flags=re.MULTILINE)
    assert bare_signals(row) == bare_signals(line) == SIGNALS
    for name in SIGNALS:
        assert PreemptionPlugin(signal=name).job_config().exit_signal == f"SIG{name}"


def codes(text: str) -> set[int]:
    """Numbers that are said to be an exit code."""
    before = r"(?:exit codes?|codes?|exits?(?: with)?|ends? with|end the rank with)"
    found = re.findall(rf"\b{before} (\d+)(?: and (\d+))?", text)
    return {int(number) for pair in found for number in pair if number}


def test_exit_codes_that_are_named_are_those_of_the_code() -> None:
    known = {*map(int, ExitCode), *OF_BASH, STOPPED}
    assert {where: codes(text) - known for where, text in DOCUMENTS if codes(text) - known} == {}
    assert {16, 17, 93} <= set().union(*(codes(text) for _, text in DOCUMENTS))


def test_the_policy_table_names_the_codes_that_decide() -> None:
    [section] = re.findall(r"^## What happens on Slurm .*?^## ", TEXT, flags=re.MULTILINE | re.DOTALL)
    endings = re.findall(r"^\| (.+?) \|", section, flags=re.MULTILINE)
    decisive = {code for code in FACTS["code"] if code != "other"} | {str(int(ExitCode.RERUN_ELSEWHERE))}
    assert set(re.findall(r"\b\d+\b", " ".join(endings))) == decisive


def test_the_codes_of_re_runs_are_those_of_the_feature_document() -> None:
    assert re.search(rf"all ranks end with {int(ExitCode.RERUN_ELSEWHERE)},", TEXT)
    assert re.search(rf"all ranks end with {int(ExitCode.VALIDATION_FAILED)},", TEXT)
    assert (ExitCode.RERUN_ELSEWHERE, ExitCode.VALIDATION_FAILED) == (16, 17)


@pytest.mark.parametrize(
    ("said", "value"),
    [
        (r"A controller that does not answer is asked again\s+for (\d+) seconds", sum(POLICY["pauses_s"])),
        (r"A learned limit needs (\d+) samples", MIN_SAMPLES),
        (r"`checkpointing` gets the larger of (\d+) and this", CHECKPOINTING_TIMEOUT_S),
        (r"all nodes up, (two)\s+minutes left", POLICY["min_seconds_left"] / 60),
        (
            r"`initial_rank_heartbeat_timeout`, (half an) hour by default",
            FaultTolerancePlugin().section_timeouts()["setup"],
        ),
    ],
)
def test_a_number_of_the_text_is_that_of_the_code(said: str, value: Any) -> None:
    words = {"two": 2.0, "half an": 1800.0}
    [number] = re.findall(said, TEXT)
    assert words.get(number) == value or (number.isdigit() and float(number) == value)


def test_what_plugins_and_policy_take_for_the_same_is_the_same() -> None:
    assert POLICY["max_attempts"] == FaultTolerancePlugin().max_job_attempts == PreemptionPlugin().max_job_attempts
