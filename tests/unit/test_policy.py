"""The retry policy: each row of its table, as a function and as the batch script runs it."""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_resiliency_plugins.slurm.policy import FACTS, RULES, Action, Decision, decide
from nemo_resiliency_plugins.slurm.render import render

USUAL = {
    "verdict": "none",
    "code": "other",
    "job": "running",
    "runtime": "started",
    "unstartable": "no",
    "notice": "no",
    "progress": "no",
    "failures": "left",
    "attempts": "left",
    "elsewhere": "yes",
}
any_facts = st.fixed_dictionaries({fact: st.sampled_from(values) for fact, values in FACTS.items()})


def decision(**facts: str) -> Decision:
    return decide({**USUAL, **facts})


@given(any_facts)
def test_every_ending_has_exactly_one_decision(facts: dict[str, str]) -> None:
    matching = [each for each in RULES if each.matches(facts)]
    assert decide(facts) == matching[0].decision


def test_every_rule_decides_something() -> None:
    deciding = set()
    for values in itertools.product(*FACTS.values()):
        facts = dict(zip(FACTS, values, strict=True))
        deciding.add(next(each.name for each in RULES if each.matches(facts)))
    assert deciding == {each.name for each in RULES}


@pytest.mark.parametrize(
    ("facts", "action", "counted", "code"),
    [
        ({"verdict": "finished"}, Action.STOP, False, "0"),
        ({"verdict": "finished", "code": "other"}, Action.STOP, False, "0"),
        ({"code": "0", "runtime": "silent"}, Action.STOP, False, "0"),
        ({"code": "0", "notice": "yes", "progress": "yes"}, Action.REQUEUE, False, "own"),
        ({"code": "0", "notice": "yes", "runtime": "silent"}, Action.REQUEUE, True, "own"),
        ({"code": "0"}, Action.AGAIN, True, "own"),
        ({"code": "0", "failures": "spent"}, Action.STOP, False, "1"),
        ({"verdict": "preempted"}, Action.REQUEUE, False, "own"),
        ({"verdict": "preempted", "failures": "spent", "attempts": "spent"}, Action.REQUEUE, False, "own"),
        ({"verdict": "preempted_unsaved"}, Action.REQUEUE, True, "own"),
        ({"verdict": "straggler"}, Action.EXCLUDE, True, "own"),
        ({"verdict": "rerun_elsewhere"}, Action.EXCLUDE, True, "own"),
        ({"verdict": "straggler", "elsewhere": "no"}, Action.AGAIN, True, "own"),
        ({"verdict": "validation_failed", "code": "0"}, Action.STOP, False, "17"),
        ({"code": "17"}, Action.STOP, False, "17"),
        ({"code": "93"}, Action.STOP, False, "own"),
        ({"code": "127", "runtime": "silent"}, Action.STOP, False, "own"),
        ({"code": "126"}, Action.STOP, False, "own"),
        ({"code": "2"}, Action.STOP, False, "own"),
        ({"unstartable": "yes", "runtime": "silent"}, Action.STOP, False, "own"),
        ({"unstartable": "yes"}, Action.AGAIN, True, "own"),
        ({"job": "gone"}, Action.LEAVE, False, "own"),
        ({"job": "gone", "verdict": "finished"}, Action.LEAVE, False, "own"),
        ({"job": "timelimit"}, Action.REQUEUE, True, "own"),
        ({"job": "timelimit", "progress": "yes", "failures": "spent"}, Action.REQUEUE, False, "own"),
        ({"job": "timelimit", "failures": "spent"}, Action.STOP, False, "1"),
        ({}, Action.AGAIN, True, "own"),
        ({"failures": "spent"}, Action.STOP, False, "own"),
        ({"attempts": "spent"}, Action.STOP, False, "own"),
    ],
)
def test_the_rows_of_the_table(facts: dict[str, str], action: Action, counted: bool, code: str) -> None:
    assert decision(**facts) == Decision(action, counted, code)


def test_a_success_is_never_started_again() -> None:
    for values in itertools.product(*FACTS.values()):
        facts = dict(zip(FACTS, values, strict=True))
        if facts["verdict"] == "finished":
            assert decide(facts).action in (Action.STOP, Action.LEAVE)


def script(directory: Path) -> str:
    return render(
        "retry_policy.sh.j2",
        directory=directory,
        max_failures=2,
        max_attempts=20,
        max_exclusions=3,
        min_seconds_left=60,
        requeue=True,
        codes=[code for code in FACTS["code"] if code != "other"],
        rules=RULES,
    )


def functions(directory: Path) -> str:
    """The script without the lines that start it."""
    return script(directory).replace("\nnrp_start\n", "\n").replace("trap 'nrp_on_exit $?' EXIT\n", "")


def test_the_batch_script_decides_as_the_function_does(tmp_path: Path) -> None:
    cases = [dict(zip(FACTS, values, strict=True)) for values in itertools.product(*FACTS.values())][::7]
    lines = "".join(" ".join(f"{fact}={value}" for fact, value in facts.items()) + " \n" for facts in cases)
    loop = 'while IFS= read -r line; do nrp_decide "$line"; echo "$nrp_action $nrp_counted $nrp_code"; done'
    code = f"export SLURM_JOB_ID=1\n{functions(tmp_path)}\n{loop}"
    done = subprocess.run(["bash", "-c", code], input=lines, capture_output=True, text=True, check=True)
    expected = [decide(facts) for facts in cases]
    assert done.stdout.splitlines() == [
        f"{each.action.value} {'yes' if each.counted else 'no'} {each.code}" for each in expected
    ]
