"""The retry policy: each row of its table, as a function and as the batch script runs it."""

from __future__ import annotations

import itertools
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_resiliency_plugins.slurm.policy import FACTS, RULES, Action, Counts, Decision, decide, retry_script

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
    "idle": "left",
    "elsewhere": "yes",
}
NOTHING, IDLE, ATTEMPT, FAILURE = Counts
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
    ("facts", "action", "counts", "code"),
    [
        ({"verdict": "finished"}, Action.STOP, NOTHING, "0"),
        ({"verdict": "finished", "code": "other"}, Action.STOP, NOTHING, "0"),
        ({"code": "0", "runtime": "silent"}, Action.STOP, NOTHING, "0"),
        ({"code": "0", "notice": "yes", "progress": "yes"}, Action.REQUEUE, NOTHING, "own"),
        ({"code": "0", "notice": "yes", "runtime": "silent"}, Action.REQUEUE, IDLE, "own"),
        ({"notice": "yes", "runtime": "silent", "failures": "spent"}, Action.REQUEUE, IDLE, "own"),
        ({"notice": "yes", "runtime": "silent", "idle": "spent"}, Action.STOP, NOTHING, "1"),
        ({"notice": "yes"}, Action.REQUEUE, FAILURE, "own"),
        ({"notice": "yes", "progress": "yes", "failures": "spent"}, Action.REQUEUE, NOTHING, "own"),
        ({"code": "0"}, Action.AGAIN, FAILURE, "own"),
        ({"code": "0", "failures": "spent"}, Action.STOP, NOTHING, "1"),
        ({"verdict": "preempted", "progress": "yes"}, Action.REQUEUE, NOTHING, "own"),
        ({"verdict": "preempted", "failures": "spent", "attempts": "spent"}, Action.REQUEUE, IDLE, "own"),
        ({"verdict": "preempted", "idle": "spent", "progress": "yes"}, Action.REQUEUE, NOTHING, "own"),
        ({"verdict": "preempted", "idle": "spent"}, Action.STOP, NOTHING, "1"),
        ({"verdict": "preempted_unsaved"}, Action.REQUEUE, FAILURE, "own"),
        ({"verdict": "straggler"}, Action.EXCLUDE, ATTEMPT, "own"),
        ({"verdict": "rerun_elsewhere"}, Action.EXCLUDE, ATTEMPT, "own"),
        ({"verdict": "straggler", "failures": "spent"}, Action.EXCLUDE, ATTEMPT, "own"),
        ({"verdict": "straggler", "attempts": "spent"}, Action.STOP, NOTHING, "1"),
        ({"verdict": "straggler", "attempts": "spent", "code": "0"}, Action.STOP, NOTHING, "1"),
        ({"verdict": "straggler", "elsewhere": "spent"}, Action.AGAIN, FAILURE, "own"),
        ({"verdict": "straggler", "elsewhere": "none", "code": "0"}, Action.AGAIN, FAILURE, "own"),
        ({"verdict": "straggler", "elsewhere": "none", "attempts": "spent"}, Action.STOP, NOTHING, "1"),
        ({"verdict": "straggler", "elsewhere": "none", "notice": "yes"}, Action.REQUEUE, FAILURE, "own"),
        ({"verdict": "validation_failed", "code": "0"}, Action.STOP, NOTHING, "17"),
        ({"code": "17"}, Action.STOP, NOTHING, "17"),
        ({"code": "93"}, Action.STOP, NOTHING, "own"),
        ({"code": "127", "runtime": "silent"}, Action.STOP, NOTHING, "own"),
        ({"code": "126"}, Action.STOP, NOTHING, "own"),
        ({"code": "2"}, Action.STOP, NOTHING, "own"),
        ({"unstartable": "yes", "runtime": "silent"}, Action.STOP, NOTHING, "own"),
        ({"unstartable": "yes"}, Action.AGAIN, FAILURE, "own"),
        ({"job": "gone"}, Action.LEAVE, NOTHING, "own"),
        ({"job": "gone", "verdict": "finished"}, Action.LEAVE, NOTHING, "own"),
        ({"job": "lost"}, Action.LEAVE, IDLE, "own"),
        ({"job": "evicted", "verdict": "finished"}, Action.STOP, NOTHING, "0"),
        ({"job": "evicted", "verdict": "preempted", "failures": "spent"}, Action.SUBMIT, IDLE, "own"),
        ({"job": "evicted", "progress": "yes", "attempts": "spent"}, Action.SUBMIT, NOTHING, "own"),
        ({"job": "evicted", "runtime": "silent", "failures": "spent"}, Action.SUBMIT, IDLE, "own"),
        ({"job": "evicted"}, Action.SUBMIT, FAILURE, "own"),
        ({"job": "evicted", "failures": "spent"}, Action.STOP, NOTHING, "1"),
        ({"job": "timelimit", "verdict": "preempted", "failures": "spent"}, Action.REQUEUE, IDLE, "own"),
        ({"job": "timelimit"}, Action.REQUEUE, FAILURE, "own"),
        ({"job": "timelimit", "progress": "yes", "failures": "spent"}, Action.REQUEUE, NOTHING, "own"),
        ({"job": "timelimit", "failures": "spent"}, Action.STOP, NOTHING, "1"),
        ({}, Action.AGAIN, FAILURE, "own"),
        ({"failures": "spent"}, Action.STOP, NOTHING, "own"),
        ({"attempts": "spent"}, Action.STOP, NOTHING, "own"),
    ],
)
def test_the_rows_of_the_table(facts: dict[str, str], action: Action, counts: Counts, code: str) -> None:
    assert decision(**facts) == Decision(action, counts, code)


def test_a_success_is_never_started_again() -> None:
    for values in itertools.product(*FACTS.values()):
        facts = dict(zip(FACTS, values, strict=True))
        if facts["verdict"] == "finished":
            assert decide(facts).action in (Action.STOP, Action.LEAVE)


def test_what_is_to_run_elsewhere_never_ends_as_a_success() -> None:
    for values in itertools.product(*FACTS.values()):
        facts = dict(zip(FACTS, values, strict=True)) | {"runtime": "started"}
        decided = decide(facts)
        if facts["verdict"] in ("straggler", "rerun_elsewhere") and decided.action is Action.STOP:
            assert (facts["code"] if decided.code == "own" else decided.code) != "0"


def functions() -> str:
    """The script without the lines that start it."""
    script = retry_script(requeue=True)
    return script.replace("\nnrp_start\n", "\n").replace("trap 'nrp_on_exit $?' EXIT\n", "")


def test_the_batch_script_decides_as_the_function_does() -> None:
    cases = [dict(zip(FACTS, values, strict=True)) for values in itertools.product(*FACTS.values())][::11]
    lines = "".join(" ".join(f"{fact}={value}" for fact, value in facts.items()) + " \n" for facts in cases)
    loop = 'while IFS= read -r line; do nrp_decide "$line"; echo "$nrp_action $nrp_counts $nrp_code"; done'
    code = f"export SLURM_JOB_ID=1\n{functions()}\n{loop}"
    done = subprocess.run(["bash", "-c", code], input=lines, capture_output=True, text=True, check=True)
    expected = [decide(facts) for facts in cases]
    assert done.stdout.splitlines() == [f"{each.action.value} {each.counts.value} {each.code}" for each in expected]
