"""Every kind of task on Slurm: scripts, inline scripts, Partials, containers, task groups."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import nemo_run as run
import pytest

from nemo_resiliency_plugins import FaultTolerancePlugin
from tests.harness import SCRIPTS
from tests.plugins.test_local_executor import ODD
from tests.scripts.show import show
from tests.slurm.submitting import Submitted, as_on_a_terminal, slurm_executor, submit
from tests.slurm.testbed import Cluster


def shown(job: Submitted, path: Path) -> dict[str, Any]:
    assert job.ended() == ("COMPLETED", "0:0"), job.log
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def showing(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    path = tmp_path / "shown.json"
    return path, {"SHOWN": str(path)}


def test_arguments_reach_the_script_byte_for_byte(cluster: Cluster, tmp_path: Path) -> None:
    odd = [*ODD, "a\nb", "{x}", "&"]
    path, env = showing(tmp_path)
    task = run.Script(str(SCRIPTS / "show.py"), entrypoint="python", args=odd)
    job = submit(cluster, tmp_path, task, [FaultTolerancePlugin()], env=env)
    assert shown(job, path)["arguments"] == odd


def test_an_inline_script_runs_under_the_launcher(cluster: Cluster, tmp_path: Path) -> None:
    path, env = showing(tmp_path)
    task = run.Script(inline=f"{sys.executable} {SCRIPTS / 'show.py'} 'a b'")
    content = shown(submit(cluster, tmp_path, task, [FaultTolerancePlugin()], env=env), path)
    assert content["arguments"] == ["a b"]
    assert "FT_RANK_MONITOR_IPC_SOCKET" in content["env"]


@pytest.mark.slow
def test_a_partial_runs_under_the_launcher(cluster: Cluster, tmp_path: Path) -> None:
    path, env = showing(tmp_path)
    env["PYTHONPATH"] = str(SCRIPTS.parents[1])
    job = submit(cluster, tmp_path, run.Partial(show, value="given"), [FaultTolerancePlugin()], env=env)
    content = shown(job, path)
    assert content["value"] == "given"
    assert "FT_RANK_MONITOR_IPC_SOCKET" in content["env"]


def test_a_rank_recovers_in_a_container(cluster: Cluster, tmp_path: Path) -> None:
    args = ["--steps", "12", "--every", "4"]
    task = run.Script(str(SCRIPTS / "trainer.py"), entrypoint="python", args=args)
    plugin = FaultTolerancePlugin(fault_script="kill@1:6")
    image = cluster.add_image("with-config", {"NRP_DIR": "/of-the-image", "NRP_CONFIG": "/of-the-image"})
    job = submit(
        cluster,
        tmp_path,
        task,
        [plugin],
        env={"TEST_ROOT": "/nemo_run"},
        ntasks_per_node=2,
        container_image=image,
    )
    assert job.ended() == ("COMPLETED", "0:0"), job.log
    assert [event["kind"] for event in job.events("fault_injected")] == ["kill"]
    assert [event["step"] for event in job.events("finished")] == [12, 12]
    assert (job.directory / "result.txt").exists()


@pytest.mark.parametrize("code", [0, pytest.param(3, marks=pytest.mark.slow)])
def test_only_the_trainer_of_a_group_gets_the_launcher(cluster: Cluster, tmp_path: Path, code: int) -> None:
    sidecar = run.Script(inline=f"env > {tmp_path}/sidecar.txt; sleep 600")
    script = tmp_path / "train.py"
    script.write_text(f"import os, sys; print('launched', 'TORCHELASTIC_RUN_ID' in os.environ); sys.exit({code})")
    trainer = run.Script(str(script), entrypoint="python")
    plugin = FaultTolerancePlugin(num_in_job_restarts=0, num_job_retries_on_failure=0)
    options = {"wait_time_for_group_job": 0, "monitor_group_job_wait_time": 1, "srun_args": ["--overlap"]}
    job = submit(cluster, tmp_path, [trainer, sidecar], [plugin], **options)
    assert job.ended() == (("COMPLETED", "0:0") if code == 0 else ("FAILED", f"{code}:0")), job.log
    assert "launched True" in job.log
    assert "TORCHELASTIC_RUN_ID" not in (tmp_path / "sidecar.txt").read_text()
    assert job.policy()["attempts"] == 0


@pytest.mark.slow
def test_in_a_group_of_several_executors_another_task_may_train(cluster: Cluster, tmp_path: Path) -> None:
    sidecar = run.Script(inline=f"env > {tmp_path}/sidecar.txt; sleep 600")
    path, env = showing(tmp_path)
    trainer = run.Script(inline=f"{sys.executable} {SCRIPTS / 'show.py'}")
    options = {"wait_time_for_group_job": 0, "monitor_group_job_wait_time": 1, "srun_args": ["--overlap"]}
    plugin = FaultTolerancePlugin(trains=1)
    job = submit(cluster, tmp_path, [sidecar, trainer], [plugin], env=env, executors=2, **options)
    assert "TORCHELASTIC_RUN_ID" in shown(job, path)["env"]
    assert "TORCHELASTIC_RUN_ID" not in (tmp_path / "sidecar.txt").read_text()


@pytest.mark.slow
def test_tasks_of_one_name_keep_to_themselves(cluster: Cluster, tmp_path: Path) -> None:
    """NeMo-Run gives them one directory; python's own options are no script."""
    quiet = {"enable_goodbye_message": False, "skip_status_at_exit": True}
    with as_on_a_terminal(cluster), run.Experiment("job", base_dir=str(tmp_path / "nemorun"), **quiet) as experiment:
        for number in (1, 2):
            env = {"SHOWN": str(tmp_path / f"shown-{number}.json")}
            task = run.Script(str(SCRIPTS / "show.py"), entrypoint="python -X faulthandler", args=[str(number)])
            plugin = FaultTolerancePlugin(num_in_job_restarts=number)
            experiment.add(task, executor=slurm_executor(tmp_path, env=env), plugins=[plugin], name="task")
        experiment.run(detach=True)
    for job in experiment.jobs:
        assert cluster.wait_for_end(job.handle.rpartition("/")[2], 60)[-1]["State"] == "COMPLETED"
    for number, nrp in ((1, "nrp"), (2, "task_1/nrp")):
        assert json.loads((tmp_path / f"shown-{number}.json").read_text())["arguments"] == [str(number)]
        directory = Path(experiment.jobs[0].executor.job_dir) / nrp
        assert f"--max-restarts={number}" in (directory / "config.json").read_text()
        assert json.loads((directory / "policy.json").read_text())["state"] == "ended"
