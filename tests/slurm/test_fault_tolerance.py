"""FaultTolerancePlugin on a real Slurm cluster, submitted through NeMo-Run."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import nemo_run as run
import psutil
import pytest

from nemo_resiliency_plugins import FaultTolerancePlugin
from nemo_resiliency_plugins.runtime.prestart.waiting import NAME as PRESTARTED
from tests.harness import SCRIPTS, wait_for
from tests.slurm.submitting import Submitted, submit
from tests.slurm.testbed import Cluster

STEPS, STEP_LIMIT_S = 30, 5


def trainer(steps: int = STEPS) -> run.Script:
    return run.Script(
        str(SCRIPTS / "trainer.py"),
        entrypoint="python",
        args=["--steps", str(steps), "--every", "5", "--step-s", "0.1"],
    )


def plugin(**fields: Any) -> FaultTolerancePlugin:
    return FaultTolerancePlugin(**{"rank_heartbeat_timeout": STEP_LIMIT_S, "warmup_steps": 2, **fields})


def train(cluster: Cluster, root: Path, **fields: Any) -> Submitted:
    return submit(cluster, root, trainer(), [plugin(**fields)], nodes=2, ntasks_per_node=2)


def script(tmp_path: Path, text: str) -> run.Script:
    path = tmp_path / "script.py"
    path.write_text(text)
    return run.Script(str(path), entrypoint="python")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The weights of a run without faults, once a test has made them."""
    return {}


def reference(cluster: Cluster, tmp_path: Path, undisturbed: dict[str, str]) -> str:
    if "weights" not in undisturbed:
        job = train(cluster, tmp_path / "undisturbed")
        assert job.ended() == ("COMPLETED", "0:0"), job.log
        assert job.attempts() == ["0-0"]
        undisturbed["weights"] = job.result()
    return undisturbed["weights"]


def test_a_hung_and_a_killed_rank_recover_in_the_job(
    cluster: Cluster, tmp_path: Path, undisturbed: dict[str, str]
) -> None:
    job = train(cluster, tmp_path, fault_script="kill@1:8,hang@2:18")
    assert job.ended() == ("COMPLETED", "0:0"), job.log
    assert job.attempts() == ["0-0"]
    assert {event["kind"] for event in job.events("fault_injected")} == {"kill", "hang"}
    assert job.policy()["why"] == "finished"
    assert job.result() == reference(cluster, tmp_path, undisturbed)


def test_the_ranks_of_a_restart_wait_on_every_node(
    cluster: Cluster, tmp_path: Path, undisturbed: dict[str, str]
) -> None:
    task = trainer()
    task.args += ["--hold-at", "20"]
    job = submit(cluster, tmp_path, task, [plugin(rank_heartbeat_timeout=120)], nodes=2, ntasks_per_node=2)

    def waiting() -> list[psutil.Process]:
        return [process for process in job.running() if process.name() == PRESTARTED]

    wait_for(lambda: len(waiting()) == 4, deadline_s=90, what="four processes that wait")
    (tmp_path / "go").touch()
    os.kill(job.events("rank_started", rank=3)[0]["pid"], signal.SIGKILL)
    assert job.ended() == ("COMPLETED", "0:0"), job.log
    assert job.attempts() == ["0-0"]
    assert all(event["prestarted"] for event in job.events("rank_started") if event["cycle"] == 1)
    assert job.result() == reference(cluster, tmp_path, undisturbed)
    assert not job.running()


@pytest.mark.slow
def test_a_killed_launcher_is_started_again_in_the_allocation(
    cluster: Cluster, tmp_path: Path, undisturbed: dict[str, str]
) -> None:
    job = train(cluster, tmp_path)
    wait_for(lambda: job.events("checkpoint"), deadline_s=60, what="a checkpoint")
    [launcher] = job.launchers(node=1)
    launcher.send_signal(signal.SIGKILL)
    assert job.ended() == ("COMPLETED", "0:0"), job.log
    assert job.attempts() == ["0-0", "0-1"]
    assert job.policy() | {"failures": 0, "attempts": 1} == job.policy()
    assert job.result() == reference(cluster, tmp_path, undisturbed)
    assert not job.running()


@pytest.mark.slow
def test_a_lost_node_is_replaced(cluster: Cluster, tmp_path: Path, undisturbed: dict[str, str]) -> None:
    job = train(cluster, tmp_path)
    wait_for(lambda: job.events("checkpoint"), deadline_s=60, what="a checkpoint")
    lost = cluster.job(job.job_id)["NodeList"]
    name = "n2" if re.search(r"2", lost) else "n3"
    cluster.lose_node(name)
    try:
        assert job.ended(180) == ("COMPLETED", "0:0"), job.log
    finally:
        cluster.restore_node(name)
    assert job.attempts()[-1].startswith("1-")
    assert job.result() == reference(cluster, tmp_path, undisturbed)


@pytest.mark.slow
def test_a_time_limit_without_a_signal_goes_on_from_the_newest_checkpoint(cluster: Cluster, tmp_path: Path) -> None:
    job = submit(cluster, tmp_path, trainer(600), [plugin()], nodes=2, ntasks_per_node=2, time="00:10:00")
    wait_for(lambda: job.events("checkpoint"), deadline_s=60, what="a checkpoint")
    cluster.set_end_time(job.job_id, 1)
    wait_for(lambda: len(job.events("resumed", rank=0)) == 2, deadline_s=120, what="the next attempt")
    assert job.attempts() == ["0-0", "1-0"]
    saved = [event["step"] for event in job.events("checkpoint", rank=0) if event["attempt"].endswith("-0-0")]
    assert job.events("resumed", rank=0)[-1]["step"] == saved[-1]
    assert job.policy() | {"failures": 0, "attempts": 0} == job.policy()
    assert cluster.sacct(job.job_id)[0]["State"] == "REQUEUED"


def test_retries_are_used_up_and_the_code_of_the_failure_is_kept(cluster: Cluster, tmp_path: Path) -> None:
    task = script(tmp_path, "import sys; print('tried'); sys.exit(42)")
    job = submit(cluster, tmp_path, task, [plugin(num_in_job_restarts=0)])
    assert job.ended() == ("FAILED", "42:0"), job.log
    assert job.attempts() == ["0-0", "0-1", "0-2"]
    assert job.policy()["why"] == "failed, no more left"
    assert job.log.count("tried\n") == 3, "a later round may not overwrite the log of an earlier one"
    assert len(cluster.sacct(job.job_id)) == 1


def test_without_retries_the_job_may_not_be_requeued(cluster: Cluster, tmp_path: Path) -> None:
    task = script(tmp_path, "import time; time.sleep(600)")
    job = submit(cluster, tmp_path, task, [plugin(num_job_retries_on_failure=0)])
    cluster.wait_for_state(job.job_id, "RUNNING")
    wait_for(lambda: cluster.job(job.job_id)["Requeue"] == "0", deadline_s=20, what="Requeue=0")
    cluster.cancel(job.job_id)
    assert job.ended()[0] == "CANCELLED"


def test_a_success_without_our_runtime_is_a_success(cluster: Cluster, tmp_path: Path) -> None:
    job = submit(cluster, tmp_path, script(tmp_path, "print('done')"), [plugin()])
    assert job.ended() == ("COMPLETED", "0:0"), job.log
    assert job.attempts() == ["0-0"]


def test_a_cancelled_job_stays_cancelled(cluster: Cluster, tmp_path: Path) -> None:
    job = submit(cluster, tmp_path, script(tmp_path, "import time; time.sleep(600)"), [plugin()])
    wait_for(lambda: job.events("rank_started"), deadline_s=60, what="a rank")
    cluster.cancel(job.job_id)
    assert job.ended()[0] == "CANCELLED"
    assert job.attempts() == ["0-0"]
    assert job.policy()["why"] == "Slurm has decided: cancelled or requeued"
    assert not job.running()


@pytest.mark.parametrize(
    ("text", "env", "code", "said"),
    [
        (None, {}, "1:0", "No such file"),
        ("import no_such_module", {}, "1:0", "no_such_module"),
        ("print('never')", {"PATH": "/usr/bin:/bin"}, "127:0", "ft_launcher is not on this node's PATH"),
    ],
    ids=["script", "module", "launcher"],
)
def test_what_cannot_start_is_not_tried_again(
    cluster: Cluster, tmp_path: Path, text: str | None, env: dict[str, str], code: str, said: str
) -> None:
    task = script(tmp_path, text) if text else run.Script(str(tmp_path / "missing.py"), entrypoint="python")
    job = submit(cluster, tmp_path, task, [plugin(num_in_job_restarts=0)], env=env)
    assert job.ended() == ("FAILED", code), job.log
    assert said in job.log
    assert job.policy()["attempts"] == 0
    assert len(job.attempts()) <= 1


@pytest.mark.slow
def test_only_the_failing_task_of_an_array_is_started_again(cluster: Cluster, tmp_path: Path) -> None:
    task = script(
        tmp_path,
        "import os, pathlib, sys\n"
        "mark = pathlib.Path(os.environ['TEST_ROOT'], 'failed')\n"
        "if os.environ['SLURM_ARRAY_TASK_ID'] == '1' and not mark.exists():\n"
        "    mark.touch(); sys.exit(3)\n",
    )
    job = submit(cluster, tmp_path, task, [plugin(num_in_job_restarts=0)], array="0-1")
    for number, attempts in (("0", 0), ("1", 1)):
        last = cluster.wait_for_end(f"{job.job_id}_{number}", 90)[-1]
        assert (last["State"], last["ExitCode"]) == ("COMPLETED", "0:0")
        assert job.policy(f"policy-{number}")["attempts"] == attempts
