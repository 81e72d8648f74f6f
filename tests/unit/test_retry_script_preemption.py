"""The batch script's part when a job is preempted, or when Slurm does not answer; with stand-ins for Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_resiliency_plugins.contract import Reason
from tests.unit.test_retry_script import RUNNING, Batch, saying

PROGRESS = 'mkdir -p "$NRP"; echo 9 > "$NRP/progress-7"; '


@pytest.fixture
def batch(tmp_path: Path) -> Batch:
    return Batch(tmp_path)


def test_a_preemption_is_never_counted(batch: Batch) -> None:
    for restart_count in range(5):
        batch.run(saying(Reason.PREEMPTED, restart_count=restart_count), restart_count)
    assert batch.calls == ["requeue 7"] * 5
    assert batch.policy() | {"failures": 0, "attempts": 0, "idle": 5} == batch.policy()
    batch.run(PROGRESS + saying(Reason.PREEMPTED, restart_count=5), 5)
    assert batch.policy() | {"failures": 0, "attempts": 0, "idle": 0} == batch.policy()


def test_preemptions_that_leave_no_time_for_anything_do_not_go_on_without_end(batch: Batch) -> None:
    codes = [batch.run(saying(Reason.PREEMPTED, restart_count=count), count, max_attempts=3) for count in range(3)]
    assert (codes[-1], batch.calls) == (1, ["requeue 7"] * 2)
    assert batch.policy()["why"] == "preempted before anything was new, no more left"


def test_a_script_that_saves_and_exits_0_when_preempted_is_brought_back(batch: Batch) -> None:
    batch.job(RUNNING.replace("PreemptTime=None", "PreemptTime=2026-01-01T00:00:00"))
    batch.run("exit 0")
    assert batch.calls == ["requeue 7"]


def test_a_script_without_a_session_that_dies_of_the_signal_is_brought_back_until_attempts_are_used_up(
    batch: Batch,
) -> None:
    for restart_count in range(3):
        notice = f'touch "$NRP/notice-7-{restart_count}-0"; exit 143'
        batch.run(notice, restart_count, max_failures=0, max_attempts=3)
    assert batch.calls == ["requeue 7"] * 2
    assert batch.policy()["why"] == "a script without our runtime ended on a notice, no more left"


def test_the_signal_that_srun_sends_after_a_failure_is_no_notice(batch: Batch) -> None:
    files = 'for file in notice broken; do touch "$NRP/$file-7-0-$NRP_ROUND"; done'
    verdict = (
        saying(Reason.PREEMPTED).replace("verdict-7-0-0", "verdict-7-0-$NRP_ROUND").replace('"step": 3', '"step": 0')
    )
    assert batch.run(f"{files}; {verdict}; exit 5") == 5
    assert (batch.rounds, batch.calls) == (3, [])


EVICTED = RUNNING.replace("RUNNING", "COMPLETING").replace("PreemptTime=None", "PreemptTime=2099-01-01T00:00:00")


def test_a_job_that_slurm_does_not_bring_back_submits_itself_and_its_counters_go_on(batch: Batch) -> None:
    batch.run("exit 5", 4)
    batch.job(EVICTED)
    batch.run(f'touch "$NRP/started-7-5-0"; {saying(Reason.PREEMPTED, restart_count=5)}; exit 143', 5)
    [call] = batch.calls
    assert call.startswith("sbatch --parsable --requeue --chdir=/submitted/from --dependency=afterany:7 ")
    assert "--comment=continues job 7 /" in call
    assert call.endswith("/batch.sh")
    assert (batch.root / "env").read_text() == "sbatch new\n", "the new job starts to count from the beginning"
    assert batch.policy() | {"job": "7", "next": "8", "failures": 2} == batch.policy()
    batch.job(RUNNING)
    batch.env = {"SLURM_JOB_ID": "8"}
    batch.run(saying(Reason.FINISHED).replace("verdict-7", "verdict-8"))
    assert batch.policy() | {"job": "8", "failures": 2, "next": ""} == batch.policy()


def test_a_task_of_an_array_submits_itself_only(tmp_path: Path) -> None:
    batch = Batch(tmp_path, env={"SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "1"})
    batch.job(EVICTED)
    batch.run("exit 143")
    assert "--comment=continues job 5_1 --array=1 " in batch.calls[0]


def test_a_cancel_within_the_grace_of_a_preemption_stays_a_cancel(batch: Batch) -> None:
    batch.job(EVICTED.replace("EndTime=2099-01-01T00:00:00", "EndTime=2098-12-31T23:59:55"))
    batch.run("exit 143")
    assert batch.calls == []


def test_the_loss_of_a_node_that_slurm_requeues_does_not_go_on_without_end(batch: Batch) -> None:
    batch.job(RUNNING.replace("RUNNING", "COMPLETING"))
    batch.nodes("down*")
    for restart_count in range(3):
        batch.run("exit 5", restart_count, max_attempts=3)
    assert batch.policy() | {"failures": 0, "attempts": 0, "idle": 3} == batch.policy()
    assert batch.run("exit 0", 3, max_attempts=3) == 1
    assert (batch.rounds, batch.calls) == (3, [])


def test_a_signal_to_the_batch_shell_alone_reaches_the_step(batch: Batch) -> None:
    step = (
        'trap \'echo told > "$STAND/told"; exit 0\' USR2; echo $$ > "$STAND/step-pid"; '
        "outer=$(ps -o ppid= -p $PPID); kill -s USR2 $outer; for _ in {1..200}; do sleep 0.05; done; exit 9"
    )
    assert batch.run(step, batch_signal="USR2") == 0
    assert batch.calls == ["scancel --signal=USR2 7"]
    assert (batch.root / "told").exists()


BUSY = """#!/bin/bash
echo "$*" >> "$STAND/calls"
[ "$(wc -l < "$STAND/calls")" -gt {times} ] || exit 1
case "$1 $2" in "show job") cat "$STAND/job" ;; esac
"""


def busy(batch: Batch, times: int) -> None:
    """Slurm's controller does not answer so many calls."""
    (batch.root / "bin" / "scontrol").write_text(BUSY.replace("{times}", str(times)))


def test_a_controller_that_is_busy_is_asked_again(batch: Batch) -> None:
    busy(batch, 3)
    batch.run(PROGRESS + saying(Reason.PREEMPTED), pauses_s=(0, 0, 0, 0))
    assert batch.calls == ["show job -o 7"] * 4 + ["requeue 7"]


def test_a_job_that_cannot_be_requeued_does_not_end_as_a_success(batch: Batch) -> None:
    busy(batch, 100)
    assert batch.run(PROGRESS + saying(Reason.PREEMPTED)) == 1
    assert batch.calls == ["show job -o 7"] * 2 + ["requeue 7"] * 2
    assert "Slurm has not taken the request" in batch.output


def test_a_cancelled_job_stays_cancelled_when_slurm_does_not_answer(batch: Batch) -> None:
    busy(batch, 100)
    batch.run('touch "$NRP/notice-7-0-0"; kill -TERM $PPID; sleep 2')
    assert set(batch.calls) == {"show job -o 7"}


@pytest.mark.parametrize("trap", ["exit 0", "exit $?", "false; exit"])
def test_a_trap_of_the_users_that_exits_takes_nothing_away(tmp_path: Path, trap: str) -> None:
    batch = Batch(tmp_path, before=f"trap '{trap}' EXIT")
    assert batch.run("exit 5", max_failures=1) == 5
    assert batch.rounds == 2


def test_a_trap_of_the_users_sees_the_code_of_the_script(tmp_path: Path) -> None:
    batch = Batch(tmp_path, before="trap 'echo $? >> \"$STAND/seen\"' EXIT")
    batch.run("exit 5", max_failures=0)
    assert (tmp_path / "seen").read_text() == "5\n"


def test_a_node_that_failed_early_takes_nothing_from_a_save_of_all_ranks(batch: Batch) -> None:
    batch.run(f'touch "$NRP/broken-7-0-0"; {PROGRESS}{saying(Reason.PREEMPTED)}; exit 1')
    assert batch.calls == ["requeue 7"]
    assert batch.policy()["why"] == "preempted and saved"


def test_a_job_submitted_from_inside_another_starts_afresh(tmp_path: Path) -> None:
    inherited = {"NRP_SIGNALLED": "6", "NRP_ROUND": "4", "NRP_ROUND_OF": "6"}
    batch = Batch(tmp_path, env=inherited)
    step = 'ps -o args= -p $(ps -o ppid= -p $PPID) > "$STAND/outer"'
    assert batch.run(step, batch_signal="USR2") == 0
    assert (tmp_path / "rounds").read_text() == "0\n"
    assert "batch.sh" in (tmp_path / "outer").read_text(), "a shell of its own waits for the signal"
