"""The batch script's part, executed by bash, with stand-ins for ``scontrol``, ``sinfo`` and the step."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from nemo_resiliency_plugins.contract import Attempt, Reason, Verdict
from nemo_resiliency_plugins.slurm.policy import retry_script

RUNNING = "JobId=7 JobState=RUNNING Reason=None PreemptTime=None TimeLimit=1:00:00 EndTime=2099-01-01T00:00:00 X=1"
SCONTROL = """#!/bin/bash
case "$1 $2" in
  "show job") cat "$STAND/job" ;;
  "show hostnames") tr , '\n' <<< "$3" ;;
  *) echo "$*" >> "$STAND/calls" ;;
esac
"""
SBATCH = """#!/bin/bash
if [ "$1" = --test-only ]; then echo "$*" >> "$STAND/tests"; cat "$STAND/impossible" 2>/dev/null && exit 1; exit 0; fi
echo "sbatch $*" >> "$STAND/calls"
echo "sbatch ${SLURM_RESTART_COUNT-new}" >> "$STAND/env"
echo 8
"""
SCANCEL = '#!/bin/bash\nread -r pid < "$STAND/step-pid"; echo "scancel $*" >> "$STAND/calls"; kill -s USR2 "$pid"\n'
SINFO = '#!/bin/bash\ncase "$*" in *--partition=gpu*) cat "$STAND/partition" ;; *) cat "$STAND/nodes" ;; esac\n'
BATCH = """#!/bin/bash
set -evx
set +e
{before}
{policy}
echo "$NRP_ROUND" >> "$STAND/rounds"
bash "$STAND/step"
exitcode=$?
set -e
if [ $exitcode -ne 0 ]; then exit $exitcode; fi
"""


@dataclasses.dataclass
class Batch:
    """A job on a cluster of stand-ins."""

    root: Path
    before: str = ""
    env: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.root / "bin").mkdir(parents=True)
        stubs = {"scontrol": SCONTROL, "sinfo": SINFO, "sbatch": SBATCH, "scancel": SCANCEL}
        for name, text in stubs.items():
            path = self.root / "bin" / name
            path.write_text(text)
            path.chmod(0o755)
        self.job(RUNNING)
        self.nodes("allocated")
        self.partition(n1="allocated", n2="idle", n3="mixed", n4="idle", n5="idle")

    @property
    def nrp(self) -> Path:
        return self.root / "it's a directory" / "nrp"

    def job(self, text: str) -> None:
        (self.root / "job").write_text(text + "\n")

    def nodes(self, states: str) -> None:
        (self.root / "nodes").write_text(states + "\n")

    def partition(self, **states: str) -> None:
        """All nodes of the job's partition."""
        (self.root / "partition").write_text("".join(f"{node} {state}\n" for node, state in states.items()))

    def run(self, step: str, restart_count: int = 0, **values: Any) -> int:
        """Run the batch script with ``step`` as the job step; its exit code."""
        (self.root / "step").write_text(step)
        given = {"max_failures": 2, "min_seconds_left": 60, "requeue": True, "pauses_s": (0, 0), **values}
        self.nrp.mkdir(parents=True, exist_ok=True)
        policy = self.nrp / "retry_policy.sh"
        policy.write_text(retry_script(**given))
        script = self.root / "batch.sh"
        script.write_text(BATCH.format(before=self.before, policy=f'. "{policy}"'))
        env = {
            **os.environ,
            "PATH": f"{self.root / 'bin'}:{os.environ['PATH']}",
            "STAND": str(self.root),
            "NRP": str(self.nrp),
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NODELIST": "n1",
            "SLURM_JOB_NUM_NODES": "1",
            "SLURM_JOB_PARTITION": "gpu",
            "SLURM_SUBMIT_DIR": "/submitted/from",
            "SLURM_RESTART_COUNT": str(restart_count),
            **self.env,
        }
        done = subprocess.run(["bash", str(script)], env=env, capture_output=True, text=True, timeout=60)
        self.output, self.errors = done.stdout, done.stderr
        return done.returncode

    @property
    def rounds(self) -> int:
        return len(self._lines("rounds"))

    @property
    def calls(self) -> list[str]:
        return self._lines("calls")

    def policy(self, name: str = "policy") -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.nrp / f"{name}.json").read_text())
        return content

    def _lines(self, name: str) -> list[str]:
        path = self.root / name
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def batch(tmp_path: Path) -> Batch:
    return Batch(tmp_path)


def saying(reason: Reason, node: str = "n1", restart_count: int = 0) -> str:
    """A step that ends with a verdict."""
    attempt = Attempt("7", restart_count)
    verdict = Verdict(reason, 0, 3, 0, node)
    text = json.dumps(dataclasses.asdict(verdict))
    return f'mkdir -p "$NRP"; echo \'{text}\' > "$NRP/verdict-{attempt.name}.json"'


def test_a_finished_verdict_ends_the_job_whatever_the_code(batch: Batch) -> None:
    assert batch.run(saying(Reason.FINISHED) + "; exit 9") == 0
    assert (batch.rounds, batch.calls) == (1, [])


def test_failures_are_tried_again_in_the_allocation_until_they_are_used_up(batch: Batch) -> None:
    assert batch.run("exit 5") == 5
    assert (batch.rounds, batch.calls) == (3, [])
    assert batch.policy() | {"failures": 2, "attempts": 2, "why": "failed, no more left"} == batch.policy()


def test_the_code_of_the_first_failed_rank_is_kept(batch: Batch) -> None:
    failing = (
        'mkdir -p "$NRP"; file="$NRP/failure-7-0-$NRP_ROUND"; '
        'echo "{\\"code\\": 40}" > "$file-50001.json"; touch -d "1 hour ago" "$file-50001.json"; '
        'echo "{\\"code\\": 41}" > "$file-40001.json"'
    )
    assert batch.run(f"{failing}; exit 1", max_failures=0) == 41


def test_progress_gives_new_failures(batch: Batch) -> None:
    progress = 'mkdir -p "$NRP"; echo $((NRP_ROUND < 3 ? NRP_ROUND : 3)) > "$NRP/progress-7"'
    assert batch.run(f"{progress}; exit 5") == 5
    assert batch.rounds == 4 + 3, "four with progress, then one failure and two retries"
    assert batch.policy()["attempts"] == 6


def test_attempts_end_what_progresses_and_never_finishes(batch: Batch) -> None:
    progress = 'mkdir -p "$NRP"; echo "$NRP_ROUND" > "$NRP/progress-7"'
    assert batch.run(f"{progress}; exit 5", max_attempts=4) == 5
    assert batch.rounds == 4


@pytest.mark.parametrize("states", ["down*", "allocated\ndrained", "idle\nfail"])
def test_with_a_bad_node_the_job_is_requeued(batch: Batch, states: str) -> None:
    batch.nodes(states)
    batch.run("exit 5")
    assert (batch.rounds, batch.calls) == (1, ["requeue 7"])
    assert batch.policy()["failures"] == 1


def test_with_little_time_left_the_job_is_requeued(batch: Batch) -> None:
    batch.job(RUNNING.replace("2099", "2001"))
    batch.run("exit 5")
    assert batch.calls == ["requeue 7"]


def test_what_slurm_has_decided_is_left_alone(batch: Batch) -> None:
    batch.job("JobId=7 JobState=COMPLETING Reason=None PreemptTime=None EndTime=2099-01-01T00:00:00")
    assert batch.run("exit 5") == 5
    assert (batch.rounds, batch.calls) == (1, [])


def test_a_time_limit_is_requeued(batch: Batch) -> None:
    batch.job("JobId=7 JobState=COMPLETING Reason=TimeLimit PreemptTime=None EndTime=2001-01-01T00:00:00")
    batch.run("exit 5")
    assert batch.calls == ["requeue 7"]


def test_a_task_of_an_array_requeues_itself_only(tmp_path: Path) -> None:
    batch = Batch(tmp_path, env={"SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "1"})
    batch.nodes("down")
    batch.run("exit 5")
    assert batch.calls == ["requeue 5_1"]
    assert batch.policy("policy-1")["failures"] == 1


def test_a_lost_batch_host_counts_as_a_failure(batch: Batch) -> None:
    for restart_count in range(3):
        batch.run("kill -9 $PPID", restart_count)
    assert batch.policy() | {"failures": 2, "state": "running"} == batch.policy()
    assert batch.run("exit 0", 3) == 1
    assert batch.rounds == 3
    assert batch.policy()["why"] == "a node was lost too often"


def test_counters_are_those_of_this_job(batch: Batch) -> None:
    batch.run("exit 5")
    batch.env = {"SLURM_JOB_ID": "8"}
    assert batch.run("exit 0") == 0
    assert batch.policy() | {"job": "8", "failures": 0} == batch.policy()


@pytest.mark.parametrize("command", ['echo "a b" > "$STAND/mine"', "echo 'a b' > $STAND/mine"])
def test_the_users_own_trap_runs_too(tmp_path: Path, command: str) -> None:
    quoted = command.replace("'", "'\\''")
    batch = Batch(tmp_path, before=f"trap '{quoted}' EXIT")
    assert batch.run("exit 0") == 0
    assert (tmp_path / "mine").read_text() == "a b\n"


def test_without_retries_the_job_is_not_requeued_by_slurm_either(batch: Batch) -> None:
    assert batch.run("exit 5", max_failures=0, requeue=False) == 5
    assert batch.calls == ["update JobId=7 Requeue=0"]


FULL = 'mv() { [ ! -e "$STAND/full" ] && command mv "$@"; }'
"""A disk on which nothing can be written from some moment on."""


@pytest.mark.parametrize("states", ["allocated", "down"])
def test_a_job_that_cannot_count_its_failures_does_not_come_back(tmp_path: Path, states: str) -> None:
    batch = Batch(tmp_path, before=FULL)
    batch.nodes(states)
    assert batch.run('touch "$STAND/full"; exit 5') == 5
    assert (batch.rounds, batch.calls) == (1, [])
    assert "policy.json cannot be written to count it" in batch.output


def test_nor_does_one_whose_batch_host_is_lost_again_and_again(tmp_path: Path) -> None:
    batch = Batch(tmp_path, before=FULL)
    batch.run('touch "$STAND/full"; kill -9 $PPID')
    assert batch.run("exit 5", 1) == 1
    assert batch.rounds == 1
    assert "policy.json cannot be written, so that failures cannot be counted: stop" in batch.errors


def test_a_preempted_job_comes_back_from_a_full_disk(tmp_path: Path) -> None:
    batch = Batch(tmp_path, before=FULL)
    progress = 'echo 5 > "$NRP/progress-7"; touch "$STAND/full"'
    assert batch.run(f"{saying(Reason.PREEMPTED)}; {progress}; exit 0") == 0
    assert batch.calls == ["requeue 7"]
