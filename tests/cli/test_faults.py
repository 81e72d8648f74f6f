"""``faults``: real ranks under the real launcher, hit while they train."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from nemo_resiliency_plugins.cli import victims
from nemo_resiliency_plugins.cli.main import app
from nemo_resiliency_plugins.contract import Attempt
from nemo_resiliency_plugins.runtime.events import EventLog
from tests.harness import ENABLED, Job, Timeouts, ended_afterwards, start, wait_for
from tests.synthetic import Job as Synthetic

QUICK = {**ENABLED, "NRP_FAULT_TOLERANCE__WARMUP_STEPS": "1", "NRP_FAULT_TOLERANCE__TIMEOUT_FLOOR_S": "5"}


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments])


def inject(job: Job, kind: str, *options: object) -> Result:
    done = invoke("faults", job.root, kind, "--yes", *options)
    assert done.exit_code == 0, done.output + job.log[-3000:]
    return done


def running(root: Path, *, ranks: int = 2, env: dict[str, str] = QUICK) -> Job:
    """Ranks that train until they are told to end, and save every second step."""
    script = ["--steps", "100000", "--every", "2", "--step-s", "0.1", "--end-with", "go"]
    return start(root, "trainer.py", *script, ranks=ranks, restarts=3, timeouts=Timeouts(step=5.0), env=env)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = running(tmp_path)
    with ended_afterwards(made):
        yield made


def saved(job: Job, cycle: int, count: int = 2) -> None:
    """Return when the ranks have gone on for a while in this cycle."""
    wait_for(
        lambda: sum(event["cycle"] == cycle for event in job.events("checkpoint", rank=0)) >= count,
        deadline_s=90,
        what=f"a checkpoint in cycle {cycle}: {job.log[-2000:]}",
    )


def let_go(job: Job) -> None:
    (job.root / "go").touch()
    job.succeed()


def failures(job: Job) -> list[str]:
    done = invoke("report", job.root, "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.output)["failures"]
    return [f"{each['first']['rank']} {each['first']['what']} {each['first']['injected']}" for each in told]


def test_an_exception_that_was_asked_for_is_found_in_the_report(tmp_path: Path) -> None:
    job = running(tmp_path, ranks=1)
    with ended_afterwards(job):
        saved(job, cycle=0)
        assert "done: exception on rank 0" in inject(job, "exception", "--rank", 0).output
        saved(job, cycle=1)
        let_go(job)
    [failure] = failures(job)
    assert failure == "0 an injected exception exception"
    [line] = re.findall("^first failure: .*", invoke("report", job.root).output, re.M)
    assert re.match(r"first failure: rank 0 on \S+: an injected exception at step \d+ \(\S+\.py:\d+\); started", line)
    line = (
        r"started again: rank 0 on \S+ failed: InjectedError: .*; all ranks go on from the checkpoint of step \d+, \d"
    )
    assert re.search(line, job.log)


@pytest.mark.slow
def test_a_day_in_the_life_of_a_job(job: Job) -> None:
    """Broken by each fault in turn, followed by ``status``, explained by ``report``."""
    saved(job, cycle=0)
    inject(job, "kill", "--rank", 1)
    saved(job, cycle=1)
    inject(job, "slow", "--rank", 0, "--seconds", 0.2, "--steps", 3)
    inject(job, "stop", "--rank", 0)
    wait_for(lambda: "hung" in invoke("status", job.root).output, deadline_s=60, what="status tells of the hang")
    saved(job, cycle=2)
    let_go(job)
    assert failures(job) == ["1 killed by a signal kill", "0 hung in step stop"]
    told = invoke("report", job.root).output
    assert re.search(r"^first failure: rank 1 on \S+: killed by a signal \(injected: kill\)", told, re.M)
    assert re.search(r"^then: rank 0 on \S+: hung in step \(injected: stop\)", told, re.M)
    kinds = [event["kind"] for event in job.events("fault_injected")]
    assert sorted(kinds) == ["kill", "slow", "stop"]


@pytest.mark.slow
def test_a_preemption_ends_all_ranks_together(tmp_path: Path) -> None:
    job = running(tmp_path, env={**QUICK, "NRP_PREEMPTION__EXIT_SIGNAL_HANDLER": "true"})
    with ended_afterwards(job):
        saved(job, cycle=0)
        assert "warning" not in inject(job, "preempt").output
        job.succeed()
    assert len(job.events("preempted")) == 2
    assert failures(job) == []
    assert ": injected: preempt" in invoke("report", job.root).output


@pytest.mark.slow
def test_a_nan_reaches_the_result_validation(tmp_path: Path) -> None:
    validates = {"NRP_RERUN_STATE_MACHINE__RERUN_MODE": "validate_results"}
    script = ["--steps", "100000"]
    job = start(tmp_path, "validated.py", *script, ranks=2, restarts=0, env={**QUICK, **validates})
    with ended_afterwards(job):
        wait_for(lambda: job.events("first_step", rank=1), deadline_s=60, what=job.log[-2000:])
        assert "warning" not in inject(job, "nan", "--rank", 1).output
        wait_for(lambda: job.events("suspect_result"), deadline_s=60, what=job.log[-2000:])


def test_a_rank_that_does_not_run_is_1(tmp_path: Path) -> None:
    Synthetic(tmp_path / "nrp").start(0)
    done = invoke("faults", tmp_path, "kill", "--rank", 0, "--yes")
    assert done.exit_code == 1


def test_a_rank_that_the_job_lacks_is_2_and_those_that_it_has_are_named(tmp_path: Path) -> None:
    Synthetic(tmp_path / "nrp").start(0)
    done = invoke("faults", tmp_path, "kill", "--rank", 7, "--yes")
    said = f"--rank=7: there is no such rank in {tmp_path / 'nrp'}. It has 2 ranks, 0 to 1."
    assert (done.exit_code, done.output) == (2, f"nemo-resiliency: {said}\n")


def test_a_rank_that_has_told_nothing_yet_is_1(tmp_path: Path) -> None:
    job = Synthetic(tmp_path / "nrp")
    with job.rank(0, Attempt()) as rank:
        rank.tell(0, "timeouts")
    done = invoke("faults", tmp_path, "kill", "--rank", 0, "--yes")
    assert (done.exit_code, "rank 0 has not started yet" in done.output) == (1, True), done.output


def process_of(tmp_path: Path, pid: int) -> Synthetic:
    """A job whose rank 0 claims to be that process of this machine."""
    job = Synthetic(tmp_path / "nrp")
    with job.rank(0, Attempt()) as rank:
        rank.node = os.uname().nodename
        rank.tell(0, "rank_started", pid=pid, node=rank.node, script="x")
    return job


def test_a_process_of_something_else_is_left_alone(tmp_path: Path) -> None:
    done = invoke("faults", process_of(tmp_path, os.getpid()).directory, "kill", "--rank", 0, "--yes")
    assert (done.exit_code, "belongs to something else" in done.output) == (1, True)


def test_a_job_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = process_of(tmp_path, os.getpid())
    monkeypatch.setattr(victims.os, "getuid", lambda: 4242)
    done = invoke("faults", job.directory, "kill", "--rank", 0, "--yes")
    assert (done.exit_code, "belongs to another user" in done.output) == (2, True)


WAITS = "import signal, sys; {0}; print('ready', flush=True); signal.pause()"
LISTENS = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))"


@contextlib.contextmanager
def waiting(tmp_path: Path, code: str) -> Iterator[tuple[Synthetic, subprocess.Popen[bytes]]]:
    """A job whose rank 0 is a process that runs ``code`` and waits for a signal."""
    command, env = [sys.executable, "-c", WAITS.format(code)], {**os.environ, "NRP_DIR": str(tmp_path / "nrp")}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield process_of(tmp_path, process.pid), process
        finally:
            process.kill()


def test_a_preemption_that_nobody_heeds_is_warned_of_and_reported(tmp_path: Path) -> None:
    with waiting(tmp_path, "pass") as (job, process):
        asked = CliRunner().invoke(app, ["faults", str(job.directory), "preempt"], input="n\n")
        assert asked.exit_code == 1
        assert "nothing takes the signal for a notice: the ranks die of it, unsaved. PreemptionPlugin" in asked.output
        assert process.poll() is None
        done = invoke("faults", job.directory, "preempt", "--yes")
        assert (done.exit_code, "warning: " in done.output) == (0, True)
        assert process.wait(10) == -signal.SIGTERM
    with contextlib.closing(EventLog(job.directory, Attempt(), 0)) as log:
        log.emit("rank_ended", pid=process.pid)
    for verb in ("status", "report"):
        told = invoke(verb, job.directory).output
        assert "killed by a signal (injected: preempt)" in told
        assert re.search(r"rank 0 on \S+: injected: preempt$", told, re.MULTILINE), told


def test_a_preemption_that_is_heeded_is_not_warned_of(tmp_path: Path) -> None:
    with waiting(tmp_path, LISTENS) as (job, process):
        done = invoke("faults", job.directory, "preempt", "--yes")
        assert (done.exit_code, "warning" in done.output) == (0, False)
        assert process.wait(10) == 0


@pytest.mark.parametrize(
    ("mode", "missing", "unseen"),
    [
        ("disabled", None, True),
        ("validate_results", None, False),
        ("validate_results", "result validation", True),
        ("validate_results", "stragglers", False),
        (None, None, False),
    ],
)
def test_a_nan_that_is_known_to_be_unseen_is_warned_of(
    tmp_path: Path, mode: str | None, missing: str | None, unseen: bool
) -> None:
    with waiting(tmp_path, "pass") as (job, process):
        with contextlib.closing(EventLog(job.directory, Attempt(), 0)) as log:
            place = {"pid": process.pid, "node": os.uname().nodename}
            log.emit("session_started", **place, **({"results": mode} if mode else {}))
            if missing is not None:
                log.emit("not_working", feature=missing, reason="x")
        done = CliRunner().invoke(app, ["faults", str(job.directory), "nan", "--rank", "0"], input="n\n")
    assert done.exit_code == 1
    assert f"nan on rank 0 (process {process.pid} on {os.uname().nodename})?" in done.output
    warned = "warning: as far as can be seen, nobody looks at the results of steps: the NaN stays."
    assert (warned in done.output) is unseen, done.output


def test_nothing_is_done_without_a_yes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = process_of(tmp_path, os.getpid())
    monkeypatch.setattr(victims, "_check_process", lambda victim: None)
    monkeypatch.setattr(victims, "signal", lambda *_: pytest.fail("a signal was sent"))
    done = CliRunner().invoke(app, ["faults", str(job.directory), "kill", "--rank", "0"], input="n\n")
    assert (done.exit_code, "kill on rank 0" in done.output) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["kill", "--seconds", 3], r"--seconds=3.0: does nothing for kill\. Leave it out"),
        (["nan", "--steps", 3], r"--steps=3: does nothing for nan\. Leave it out"),
        (["slow", "--seconds", 0], r"^nemo-resiliency: --seconds=0\.0: must be"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(tmp_path: Path, arguments: list[object], said: str) -> None:
    Synthetic(tmp_path / "nrp").start(0)
    done = invoke("faults", tmp_path, *arguments, "--rank", 0, "--yes")
    assert done.exit_code == 2, done.output
    assert re.search(said, done.output), done.output


def test_a_fault_of_a_rank_needs_one(tmp_path: Path) -> None:
    Synthetic(tmp_path / "nrp").start(0)
    done = invoke("faults", tmp_path, "stop", "--yes")
    assert (done.exit_code, done.output) == (
        2,
        "nemo-resiliency: --rank is missing: stop is for one rank. Give --rank 0, say.\n",
    )
    assert invoke("faults", tmp_path, "explode", "--rank", 0, "--yes").exit_code == 2
