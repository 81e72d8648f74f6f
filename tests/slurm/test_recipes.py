"""Each recipe on a real Slurm cluster, in Python and by the command ``nemorun``."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import nemo_run as run
import pytest

from nemo_resiliency_plugins import FaultTolerancePlugin, InProcessRestartPlugin, RerunStateMachinePlugin
from nemo_resiliency_plugins.recipes.own_script import in_process_restart, script
from nemo_resiliency_plugins.recipes.plugin_sets import (
    fast_recovery,
    fault_drill,
    in_process,
    preemptible,
    production,
    with_fields,
)
from nemo_resiliency_plugins.recipes.small_gpt import small_gpt, small_gpt_on_slurm
from tests.harness import BIN, SCRIPTS, Traces, clean_env, wait_for
from tests.slurm.submitting import SEVERAL_LAUNCHERS_ON_A_HOST, Submitted, preempt, slurm_executor, submit_to
from tests.slurm.testbed import Cluster

TRAINER = str(SCRIPTS / "trainer.py")
ARGUMENTS = ["--steps", "20", "--every", "5", "--step-s", "0.1"]
LOOPBACK = {"NRP_ALLOW_LOOPBACK": "1"}
QUICK = {"monitor_thread_interval": 0.2, "monitor_process_interval": 0.2, "last_call_wait": 0.2}


def quick(plugins: list[Any]) -> list[Any]:
    """The set with a step limit that a test can wait for."""
    return with_fields(plugins, FaultTolerancePlugin, rank_heartbeat_timeout=5, warmup_steps=2)


def start(
    cluster: Cluster, root: Path, plugins: list[Any], arguments: list[str] = ARGUMENTS, **options: Any
) -> Submitted:
    executor = slurm_executor(root, env=LOOPBACK, **{"nodes": 2, "ntasks_per_node": 2, **options})
    task, executor, plugins = script(TRAINER, arguments, executor=executor, plugins=plugins)
    return submit_to(cluster, root, task, executor, plugins)


def assert_completed(job: Submitted) -> None:
    assert job.ended(240) == ("COMPLETED", "0:0"), job.log
    assert job.policy()["why"] == "finished"


def nemorun(cluster: Cluster, root: Path, *arguments: str) -> str:
    """What the command says; an error if it fails."""
    env = clean_env({**cluster.variables, "NEMORUN_HOME": str(root / "home"), "COLUMNS": "200"})
    command = [str(BIN / "nemorun"), "resiliency", *arguments, "--yes"]
    done = subprocess.run(
        command, env=env, cwd=root, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def test_nemorun_picks_a_plugin_set_and_overrides_one_field(cluster: Cluster, tmp_path: Path) -> None:
    env = {"TEST_ROOT": str(tmp_path), **LOOPBACK, **SEVERAL_LAUNCHERS_ON_A_HOST}
    nemorun(
        cluster,
        tmp_path,
        "script",
        "--detach",
        f"path={TRAINER}",
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
    wait_for(lambda: len(traces.events("finished")) == 2, deadline_s=90, what="the end of the training")
    assert [event["kind"] for event in traces.events("fault_injected")] == ["kill"]
    told = (directory / "nrp" / "config.json").read_text()
    assert '"warmup_steps": 3' in told
    assert '"exit_signal_handler": true' in told
