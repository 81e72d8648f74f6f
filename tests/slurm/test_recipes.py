"""Each recipe on a real Slurm cluster, in Python and by the command ``nemorun``."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nemo_resiliency_plugins import (
    FaultTolerancePlugin,
    InProcessRestartPlugin,
    PreemptionPlugin,
    RerunStateMachinePlugin,
)
from nemo_resiliency_plugins.contract import variable
from nemo_resiliency_plugins.recipes.own_script import in_process_restart, script
from nemo_resiliency_plugins.recipes.plugin_sets import (
    fast_recovery,
    fault_drill,
    in_process,
    preemptible,
    production,
    with_fields,
)
from nemo_resiliency_plugins.recipes.small_gpt import small_gpt_on_slurm
from tests.harness import BIN, SCRIPTS, Traces, clean_env, wait_for
from tests.recipes.test_plain_scripts import SEEN, STEPS_ONLY
from tests.slurm.submitting import SEVERAL_LAUNCHERS_ON_A_HOST, Submitted, preempt, slurm_executor, submit_to
from tests.slurm.testbed import Cluster
from tests.slurm.testbed.sshd import HOST, login_node

TRAINER = "trainer.py"
STEPS = 20
LOOPBACK = {"NRP_ALLOW_LOOPBACK": "1"}
QUICK_LIVES = {"monitor_thread_interval": 0.2, "monitor_process_interval": 0.2, "last_call_wait": 0.2}


def quick(plugins: list[Any]) -> list[Any]:
    """The set with limits that a test can wait for."""
    return with_fields(plugins, FaultTolerancePlugin, rank_heartbeat_timeout=5, warmup_steps=2)


def arguments(steps: int) -> list[str]:
    return ["--steps", str(steps), "--every", "5", "--step-s", "0.1"]


def start(
    cluster: Cluster, root: Path, plugins: list[Any], name: str = TRAINER, steps: int = STEPS, **options: Any
) -> Submitted:
    executor = slurm_executor(root, env=LOOPBACK, **{"nodes": 2, "ntasks_per_node": 2, **options})
    recipe = script(str(SCRIPTS / name), arguments(steps), executor=executor, plugins=plugins)
    return submit_to(cluster, root, *recipe)


def assert_finished(job: Submitted) -> None:
    assert job.ended(240) == ("COMPLETED", "0:0"), job.log
    assert job.policy() | {"why": "finished", "failures": 0} == job.policy()


def batch_script(experiment: Path) -> str:
    [path] = experiment.glob("*_sbatch.sh")
    return path.read_text()


def nemorun(variables: Mapping[str, str], root: Path, *arguments: str) -> str:
    """What the command says; an error if it fails."""
    env = clean_env({**variables, "NEMORUN_HOME": str(root / "home"), "COLUMNS": "200"})
    command = [str(BIN / "nemorun"), "resiliency", *arguments, "--yes"]
    done = subprocess.run(
        command, env=env, cwd=root, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def test_nemorun_picks_a_plugin_set_and_overrides_one_field(cluster: Cluster, tmp_path: Path) -> None:
    env = {"TEST_ROOT": str(tmp_path), **LOOPBACK, **SEVERAL_LAUNCHERS_ON_A_HOST}
    said = nemorun(
        cluster.variables,
        tmp_path,
        "script",
        "--detach",
        f"path={SCRIPTS / TRAINER}",
        "args=--steps 12 --every 4",
        "run.executor=slurm",
        "run.executor.account=root",
        "run.executor.ntasks_per_node=2",
        f"run.executor.env_vars={env}",
        "run.executor.packager=ship_nothing",
        "run.plugins=fault_drill(kill@1:6)",
        "run.plugins[0].warmup_steps=3",
    )
    [directory] = (tmp_path / "home").glob("experiments/script/*/script")
    traces = Traces(tmp_path, directory / "nrp")
    [job_id] = re.findall(r"slurm_tunnel://nemo_run/(\d+)", said)
    assert cluster.wait_for_end(job_id, 150)[-1]["State"] == "COMPLETED"
    assert len(traces.events("finished")) == 2
    assert [event["kind"] for event in traces.events("fault_injected")] == ["kill"]
    told = (directory / "nrp" / "config.json").read_text()
    assert '"warmup_steps": 3' in told
    assert '"exit_signal_handler": true' in told
    assert "--container" not in batch_script(directory.parent)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [TRAINER, "fsdp_trainer.py"])
def test_a_fault_drill_ends_with_the_weights_of_an_undisturbed_run(cluster: Cluster, tmp_path: Path, name: str) -> None:
    drill = start(cluster, tmp_path / "drill", quick(fault_drill("kill@1:8,hang@2:13")), name)
    assert_finished(drill)
    undisturbed = start(cluster, tmp_path / "undisturbed", production(), name)
    assert_finished(undisturbed)
    assert {event["kind"] for event in drill.events("fault_injected")} == {"kill", "hang"}
    assert drill.attempts() == ["0-0"]
    assert drill.result() == undisturbed.result()


@pytest.mark.slow
def test_on_a_preemptible_partition_it_comes_back(cluster: Cluster, tmp_path: Path) -> None:
    job = start(cluster, tmp_path, preemptible(), steps=100, partition="low")
    wait_for(lambda: len(job.steps()) > 10, deadline_s=90, what="some steps")
    preempt(cluster)
    assert_finished(job)
    assert job.attempts() == ["0-0", "1-0"]
    [_, again] = job.events("resumed", rank=0)
    assert again["step"] == job.events("preempted", rank=0)[0]["step"]


@pytest.mark.slow
def test_fast_recovery_resumes_from_the_local_tier(cluster: Cluster, tmp_path: Path) -> None:
    plugins = fast_recovery(str(tmp_path / "local" / "node"), local_every=2)
    drill = with_fields(plugins, FaultTolerancePlugin, fault_script="kill@1:9")
    job = start(cluster, tmp_path, drill, nodes=1)
    assert_finished(job)
    [_, again] = job.events("resumed", rank=0)
    assert (again["tier"], again["step"]) == ("local", 8)


@pytest.mark.slow
def test_the_small_gpt_is_the_same_here_and_there_and_through_a_fault(cluster: Cluster, tmp_path: Path) -> None:
    executor = slurm_executor(tmp_path, env=LOOPBACK, ntasks_per_node=2)
    recipe = small_gpt_on_slurm(str(tmp_path / "there"), executor, steps=12, plugins=fault_drill("kill@1:7"))
    job = submit_to(cluster, tmp_path, *recipe)
    assert_finished(job)
    assert [event["kind"] for event in job.events("fault_injected")] == ["kill"]
    nemorun(cluster.variables, tmp_path, "small_gpt", f"directory={tmp_path / 'here'}", "steps=12")
    here, there = ((tmp_path / name / "weights.sha256").read_text() for name in ("here", "there"))
    assert here == there


@pytest.mark.slow
def test_the_small_gpt_is_shipped_from_a_laptop(cluster: Cluster, tmp_path: Path) -> None:
    with login_node(tmp_path / "login", cluster) as node:
        tunnel = {
            "host": HOST,
            "user": "root",
            "port": node.port,
            "identity": node.identity,
            "job_dir": tmp_path / "jobs",
        }
        said = nemorun(
            {"PATH": f"{node.laptop_bin}:{os.environ['PATH']}"},
            tmp_path,
            "small_gpt",
            "--detach",
            f"directory={tmp_path / 'out'}",
            "steps=6",
            "run.executor=slurm_over_ssh",
            "run.executor.account=root",
            *(f"run.executor.tunnel.{field}={value}" for field, value in tunnel.items()),
        )
        [job_id] = re.findall(r"slurm_tunnel://nemo_run/(\d+)", said)
        assert cluster.wait_for_end(job_id, 240)[-1]["State"] == "COMPLETED"
    assert (tmp_path / "out" / "weights.sha256").exists()
    assert list((tmp_path / "jobs").rglob("small_gpt.py"))


@pytest.mark.slow
def test_in_process_restart_survives_a_killed_rank_with_a_spare(cluster: Cluster, tmp_path: Path) -> None:
    env = {**LOOPBACK, variable("fault_tolerance", "fault_script"): "kill@1:12"}
    executor = slurm_executor(tmp_path, env=env, nodes=2, ntasks_per_node=2)
    plugins = with_fields(in_process(active_world_size=2), InProcessRestartPlugin, **QUICK_LIVES)
    path = str(SCRIPTS / "inprocess_trainer.py")
    job = submit_to(cluster, tmp_path, *in_process_restart(path, arguments(30), executor=executor, plugins=plugins))
    assert_finished(job)
    assert job.attempts() == ["0-0"]
    assert [event["step"] for event in job.events("resumed", rank=0)] == [None, 10]


@pytest.mark.slow
def test_the_small_gpt_restarts_in_its_processes(cluster: Cluster, tmp_path: Path) -> None:
    env = {**LOOPBACK, variable("fault_tolerance", "fault_script"): "exception@1:7"}
    executor = slurm_executor(tmp_path, env=env, ntasks_per_node=2)
    plugins = with_fields(in_process(), InProcessRestartPlugin, **QUICK_LIVES)
    job = submit_to(cluster, tmp_path, *small_gpt_on_slurm(str(tmp_path), executor, steps=12, plugins=plugins))
    assert_finished(job)
    assert len(job.events("rank_started")) == 2
    assert [event["step"] for event in job.events("resumed", rank=0)] == [None, 5]


@pytest.mark.slow
def test_bare_metal_without_containers_and_with_all_plugins_that_go_together(cluster: Cluster, tmp_path: Path) -> None:
    plugins = quick(production(str(tmp_path / "local" / "node"), local_every=2))
    plugins = [*with_fields(plugins, FaultTolerancePlugin, fault_script="kill@1:8"), RerunStateMachinePlugin()]
    job = start(cluster, tmp_path, plugins, steps=100, partition="low")
    wait_for(lambda: len(job.steps()) > 30, deadline_s=90, what="steps after the fault")
    preempt(cluster)
    assert_finished(job)
    assert "--container" not in batch_script(job.directory.parent)
    assert [event["kind"] for event in job.events("fault_injected")] == ["kill"]
    assert job.attempts() == ["0-0", "1-0"]
    preempted = job.events("preempted", rank=0)[0]["step"]
    assert job.events("resumed", rank=0)[-1]["step"] == preempted
    assert list((tmp_path / "local" / "node").rglob("*")), "the local tier lies where the host has it"
    assert "/nemo_run/" not in json.dumps([job.events(), job.policy()]), "a path that only a container has"


@pytest.mark.slow
def test_an_argparse_script_with_steps_only_runs_as_it_is(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(STEPS_ONLY)
    executor = slurm_executor(tmp_path)
    plugins = [FaultTolerancePlugin(), PreemptionPlugin()]
    recipe = script(str(path), ["--steps", "3"], executor=executor, plugins=plugins)
    job = submit_to(cluster, tmp_path, *recipe)
    assert job.ended() == ("COMPLETED", "0:0"), job.log
    assert json.loads((job.directory / "code" / SEEN).read_text()) == [3, "--steps", "3"]
