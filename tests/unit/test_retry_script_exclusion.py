"""The batch script's part when the job is to run without a node; with stand-ins for Slurm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nemo_resiliency_plugins.contract import Attempt, Reason, nowhere_path, read_events
from tests.unit.test_retry_script import RUNNING, Batch, saying

NOBODY = RUNNING.replace("X=1", "ReqNodeList=(null) ExcNodeList=(null) NodeList=n1")


@pytest.fixture
def batch(tmp_path: Path) -> Batch:
    made = Batch(tmp_path)
    made.job(NOBODY)
    return made


def straggler(batch: Batch, node: str, restart_count: int = 0, **values: Any) -> int:
    return batch.run(saying(Reason.STRAGGLER, node, restart_count), restart_count, **values)


def exclusions(batch: Batch) -> list[tuple[str, str, str]]:
    found = [event for event in read_events(batch.nrp) if event["event"] == "node_excluded"]
    assert all(event["time"] > 1e9 and event["rank"] is None for event in found)
    return [(event["attempt"], event["node"], event["reason"]) for event in found]


def test_a_straggler_is_excluded_and_the_exclusions_add_up(batch: Batch) -> None:
    for restart_count, node in enumerate(["n4", "n5"]):
        straggler(batch, node, restart_count)
    assert batch.calls == [
        "requeue 7",
        "update JobId=7 ExcNodeList=n4",
        "requeue 7",
        "update JobId=7 ExcNodeList=n4,n5",
    ]
    assert exclusions(batch) == [("7-0-0", "n4", "straggler"), ("7-1-0", "n5", "straggler")]
    assert batch.policy() | {"excluded": "n4 n5", "attempts": 2, "why": "run elsewhere"} == batch.policy()
    assert not nowhere_path(batch.nrp, Attempt("7")).exists()


def test_a_verdict_may_name_several_nodes(batch: Batch) -> None:
    straggler(batch, "n4 n5")
    assert batch.calls[-1] == "update JobId=7 ExcNodeList=n4,n5"
    assert [node for _, node, _ in exclusions(batch)] == ["n4", "n5"]


def test_a_job_that_slurm_may_not_bring_back_by_itself_leaves_the_node_too(batch: Batch) -> None:
    straggler(batch, "n4", max_failures=0, requeue=False)
    settings = [f"update JobId=7 Requeue={value}" for value in (0, 1)]
    assert batch.calls == [*settings, "requeue 7", "update JobId=7 ExcNodeList=n4"]
    assert batch.run("exit 0", 1, max_failures=0, requeue=False) == 0
    assert batch.rounds == 2


def test_nodes_that_the_user_excludes_stay_excluded(batch: Batch) -> None:
    batch.job(NOBODY.replace("ExcNodeList=(null)", "ExcNodeList=n2,n4"))
    straggler(batch, "n5", max_exclusions=1)
    assert batch.calls[-1] == "update JobId=7 ExcNodeList=n2,n4,n5"
    assert batch.policy()["excluded"] == "n5"


def test_a_verdict_without_a_node_takes_nothing_from_the_list(batch: Batch) -> None:
    batch.run(saying(Reason.RERUN_ELSEWHERE, ""))
    assert batch.calls == ["requeue 7"]
    assert exclusions(batch) == []


@pytest.mark.parametrize("states", ["down", "down*", "drained", "draining", "fail", "failing", "idle*", "unknown"])
def test_a_node_that_no_job_can_use_is_no_other_node(batch: Batch, states: str) -> None:
    batch.partition(n1="allocated", n2=states)
    assert straggler(batch, "n1", max_failures=0) == 1
    assert (batch.rounds, batch.calls) == (1, [])
    assert nowhere_path(batch.nrp, Attempt("7")).exists()


@pytest.mark.parametrize("states", ["idle", "allocated", "mixed", "completing", "idle~", "planned"])
def test_a_node_that_other_jobs_have_is_waited_for(batch: Batch, states: str) -> None:
    batch.partition(n1="allocated", n2=states)
    straggler(batch, "n1")
    assert batch.calls == ["requeue 7", "update JobId=7 ExcNodeList=n1"]


def test_where_no_other_node_is_left_it_runs_again_where_it_is_and_says_so(batch: Batch) -> None:
    batch.job(NOBODY.replace("ExcNodeList=(null)", "ExcNodeList=n3"))
    batch.partition(n1="allocated", n2="drained", n3="idle")
    step = 'if [ "$NRP_ROUND" = 0 ]; then ' + saying(Reason.STRAGGLER, "n1") + "; else exit 5; fi"
    assert batch.run(step, max_failures=1) == 5
    assert (batch.rounds, batch.calls, exclusions(batch)) == (2, [], [])
    assert "run elsewhere, but too few nodes would be left: again in this allocation" in batch.output
    assert "without n1,n3: the job needs 1 nodes, partition gpu has 0\n" in batch.errors
    assert batch.policy() | {"excluded": "", "failures": 1} == batch.policy()


def always_slow(batch: Batch, **values: Any) -> int:
    """A straggler in every attempt, which gets a step further each time."""
    verdict = saying(Reason.STRAGGLER, "n1").replace("verdict-7-0-0", "verdict-7-0-$NRP_ROUND")
    return batch.run(f'mkdir -p "$NRP"; echo "$NRP_ROUND" > "$NRP/progress-7"; {verdict}', **values)


def test_a_straggler_that_cannot_be_left_does_not_stop_the_job_without_end(batch: Batch) -> None:
    batch.partition(n1="allocated")
    assert always_slow(batch, max_failures=0, max_attempts=4) == 1
    assert batch.rounds == 4
    assert batch.policy()["why"] == "run elsewhere, but too few nodes would be left, no more left"


@pytest.mark.parametrize(("bound", "node"), [(0, "n1"), (1, "n4 n5")])
def test_no_more_than_so_many_nodes_are_excluded(batch: Batch, bound: int, node: str) -> None:
    straggler(batch, node, max_exclusions=bound, max_failures=0)
    assert batch.calls == []
    assert batch.policy()["why"] == "run elsewhere, but too many nodes are excluded, no more left"


def test_a_node_that_is_named_twice_counts_once(batch: Batch) -> None:
    for restart_count in range(2):
        straggler(batch, "n4", restart_count, max_exclusions=1)
    assert batch.calls == ["requeue 7", "update JobId=7 ExcNodeList=n4"] * 2
    assert batch.policy()["excluded"] == "n4"


def test_slurm_is_asked_whether_the_job_could_start_without_the_node(batch: Batch) -> None:
    (batch.root / "impossible").write_text("allocation failure: none like that\n")
    straggler(batch, "n1", max_failures=0)
    [question] = (batch.root / "tests").read_text().splitlines()
    assert question.startswith("--test-only --partition=gpu --nodes=1 --exclude=n1 /")
    assert "[nemo_resiliency_plugins] without n1: allocation failure: none like that\n" in batch.errors
    assert batch.calls == []
    assert batch.policy()["why"] == "run elsewhere, but too few nodes would be left, no more left"


def test_other_endings_ask_nothing_about_nodes(batch: Batch) -> None:
    batch.run(saying(Reason.FINISHED))
    assert not (batch.root / "tests").exists()


REFUSES = """#!/bin/bash
case "$1 $2" in "show job") cat "$STAND/job" ;; *) echo "$*" >> "$STAND/calls" ;; esac
[ "$1" != update ] || [ "$(grep -c update "$STAND/calls")" -gt {times} ]
"""


def test_an_exclusion_that_slurm_does_not_take_at_once_is_asked_for_again(batch: Batch) -> None:
    (batch.root / "bin" / "scontrol").write_text(REFUSES.replace("{times}", "1"))
    straggler(batch, "n4")
    assert batch.calls == ["requeue 7", *["update JobId=7 ExcNodeList=n4"] * 2]
    assert len(exclusions(batch)) == 1


def test_an_exclusion_that_slurm_does_not_take_is_said_and_the_job_goes_on(batch: Batch) -> None:
    (batch.root / "bin" / "scontrol").write_text(REFUSES.replace("{times}", "9"))
    assert straggler(batch, "n4") == 0
    assert "Slurm has not taken the exclusion of n4" in batch.output
    assert exclusions(batch) == []


def test_a_task_of_an_array_excludes_for_itself_only(tmp_path: Path) -> None:
    batch = Batch(tmp_path, env={"SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "1"})
    batch.job(NOBODY)
    straggler(batch, "n4")
    assert batch.calls == ["requeue 5_1", "update JobId=5_1 ExcNodeList=n4"]


def test_a_job_that_submits_itself_keeps_away_from_the_same_nodes(batch: Batch) -> None:
    batch.job(
        NOBODY.replace("RUNNING", "COMPLETING")
        .replace("PreemptTime=None", "PreemptTime=2099-01-01T00:00:00")
        .replace("ExcNodeList=(null)", "ExcNodeList=n[4-5]")
    )
    batch.run("exit 143")
    [call] = batch.calls
    assert " --exclude=n[4-5] " in call
