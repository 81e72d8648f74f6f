"""FaultTolerancePlugin on SlurmExecutor: what it plans and what it refuses."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import nemo_run as run
import pytest

from nemo_resiliency_plugins import (
    CheckpointPlugin,
    ConfigError,
    ConflictError,
    FaultTolerancePlugin,
    PreemptionPlugin,
    RerunStateMachinePlugin,
    StragglerPlugin,
    UnsupportedError,
)
from nemo_resiliency_plugins.plugins.node_launcher import NodeLauncher
from tests.plugins.slurm import make, policy, told, transformed


@pytest.fixture
def executor(tmp_path: Path) -> run.SlurmExecutor:
    return make(tmp_path)


def test_ranks_become_the_launchers_and_tasks_one_a_node(task: run.Script, executor: run.SlurmExecutor) -> None:
    FaultTolerancePlugin().setup(task, executor)
    assert isinstance(executor.launcher, NodeLauncher)
    assert told(executor)["node"] == {**told(executor)["node"], "kind": "ft", "nproc": 4, "nnodes": "2:2"}
    assert (executor.ntasks_per_node, executor.retries) == (1, 0)
    assert ". /cluster/experiment/job/nrp/retry_policy.sh ||" in executor.setup_lines


def test_the_launcher_answers_to_the_names_of_nemo_run(task: run.Script, executor: run.SlurmExecutor) -> None:
    FaultTolerancePlugin(num_in_job_restarts=7).setup(task, executor)
    launcher = executor.launcher
    found = (launcher.max_restarts, launcher.initial_rank_heartbeat_timeout, launcher.rank_heartbeat_timeout)
    assert found == (7, 1800, 300)


def test_the_users_setup_lines_and_task_stay(task: run.Script, tmp_path: Path) -> None:
    executor = make(tmp_path, setup_lines="module load cuda")
    before = copy.deepcopy(task)
    FaultTolerancePlugin().setup(task, executor)
    assert executor.setup_lines.startswith("module load cuda\n")
    assert task == before


@pytest.mark.parametrize(
    ("fields", "plugin", "error", "text"),
    [
        ({"heterogeneous": True}, {}, UnsupportedError, "heterogeneous"),
        ({"srun_args": ["--kill-on-bad-exit=0"]}, {}, ConflictError, "--kill-on-bad-exit"),
        ({"srun_args": ["-K0"]}, {}, ConflictError, "-K0"),
        ({"srun_args": ["-K", "0"]}, {}, ConflictError, "-K 0"),
        ({"retries": 5}, {}, ConflictError, r"executor.retries=5.*num_job_retries_on_failure=2"),
        ({"launcher": run.SlurmRay()}, {}, ConflictError, "launcher"),
        ({"tunnel": run.LocalTunnel(job_dir="/me/nemo_run/x")}, {}, UnsupportedError, "/nemo_run"),
        ({"nodes": 1}, {"spare_nodes": 1}, ConfigError, "spare_nodes=1"),
        ({}, {"trains": 1}, ConfigError, "trains=1: there is no such task among 1"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_changed(
    task: run.Script, tmp_path: Path, fields: dict[str, Any], plugin: dict[str, Any], error: type, text: str
) -> None:
    executor = make(tmp_path, **fields)
    before = copy.deepcopy(executor)
    with pytest.raises(error, match=text):
        FaultTolerancePlugin(**plugin).setup(task, executor)
    assert executor == before


def test_a_group_may_not_drop_it_in_one_of_its_executors(task: run.Script, tmp_path: Path) -> None:
    of_group = [make(tmp_path), make(tmp_path, srun_args=["--kill-on-bad-exit=0"])]
    with pytest.raises(ConflictError, match="--kill-on-bad-exit=0"):
        FaultTolerancePlugin().setup(task, run.SlurmExecutor.merge(of_group, num_tasks=2))


def test_retries_of_the_executor_that_agree_are_taken_over(task: run.Script, tmp_path: Path) -> None:
    executor = make(tmp_path, retries=5)
    FaultTolerancePlugin(num_job_retries_on_failure=5).setup(task, executor)
    assert "nrp_max_failures=5\n" in policy(executor)
    assert executor.retries == 0


def test_spare_nodes_become_a_range_that_survives_a_lost_node(task: run.Script, tmp_path: Path) -> None:
    executor = make(tmp_path, nodes=5, srun_args=["--overlap"])
    plugin = FaultTolerancePlugin(spare_nodes=1)
    plugin.setup(task, executor)
    plugin.setup(task, executor)
    assert told(executor)["node"]["nnodes"] == "4:5"
    assert executor.srun_args == ["--overlap", "--no-kill", "--kill-on-bad-exit=0"]
    assert executor.additional_parameters == {"no_kill": True}


def test_two_plugins_that_differ_are_a_conflict(task: run.Script, executor: run.SlurmExecutor) -> None:
    FaultTolerancePlugin().setup(task, executor)
    with pytest.raises(ConflictError):
        FaultTolerancePlugin(num_job_retries_on_failure=9).setup(task, executor)


def test_a_task_that_the_group_does_not_have_cannot_train(task: run.Script, executor: run.SlurmExecutor) -> None:
    executor.run_as_group = True
    for each in (task, copy.deepcopy(task)):
        FaultTolerancePlugin(trains=2).setup(each, executor)
    with pytest.raises(ConfigError, match="trains=2: the group has 2 tasks"):
        executor.launcher.transform(["python", "train.py"])


@pytest.mark.parametrize("trains", [0, 1])
@pytest.mark.parametrize("sidecar", [run.Script("log.py", args=["x"]), run.Script(inline="sleep 9")])
def test_only_the_task_that_trains_is_told_by_overrides(
    task: run.Script, executor: run.SlurmExecutor, trains: int, sidecar: run.Script
) -> None:
    executor.run_as_group = True
    trainer, beside = task, copy.deepcopy(sidecar)
    group = [trainer, beside] if trains == 0 else [beside, trainer]
    kinds = (FaultTolerancePlugin, PreemptionPlugin, CheckpointPlugin, StragglerPlugin, RerunStateMachinePlugin)
    plugins = [kind(trains=trains, overrides="megatron_bridge") for kind in kinds]
    for _ in range(2):
        for plugin in plugins:
            for each in group:
                plugin.setup(each, executor)
    assert beside == sidecar
    sections = {argument.partition(".")[0] for argument in trainer.args[2:]}
    assert sections == {"ft", "train", "checkpoint", "nvrx_straggler", "rerun_state_machine"}


def test_the_job_is_told_by_files(task: run.Script, executor: run.SlurmExecutor) -> None:
    FaultTolerancePlugin(warmup_steps=3, fault_script="kill@0:1").setup(task, executor)
    config = told(executor)
    assert config["fault_tolerance"] == {
        "enable_ft_package": True,
        "calc_ft_timeouts": True,
        "fault_script": "kill@0:1",
        "warmup_steps": 3,
    }


def test_the_same_source_gives_the_same_zip_and_it_stands_alone(
    task: run.Script, executor: run.SlurmExecutor, tmp_path: Path
) -> None:
    FaultTolerancePlugin().setup(task, executor)
    path = transformed(executor) / "runtime.zip"
    first = path.read_bytes()
    assert transformed(executor).joinpath("runtime.zip").read_bytes() == first
    names = set(zipfile.ZipFile(path).namelist())
    shipped = ("plugins/base.py", "recipes/__init__.py", "megatron_bridge.py", "integrations/lightning.py")
    assert {f"nemo_resiliency_plugins/{name}" for name in shipped} <= names
    code = "import nemo_resiliency_plugins.runtime.node as it; print(it.__file__)"
    environment = {"PYTHONPATH": str(path), "PATH": "/usr/bin"}
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(str(path))


DRY_RUN = """
import sys
sys.modules["torch"] = sys.modules["nvidia_resiliency_ext"] = None
import nemo_run as run
from nemo_resiliency_plugins import FaultTolerancePlugin
tunnel = run.LocalTunnel(job_dir=f"{sys.argv[1]}/experiments")
executor = run.SlurmExecutor(account="a", nodes=2, tunnel=tunnel, packager=run.Packager())
task = run.Script("/image/train.py", entrypoint="python")
with run.Experiment("dry", base_dir=sys.argv[1]) as experiment:
    experiment.add(task, executor=executor, plugins=[FaultTolerancePlugin()], name="task")
    experiment.dryrun()
"""


def test_a_laptop_without_torch_and_nvrx_can_submit(tmp_path: Path) -> None:
    command = [sys.executable, "-c", DRY_RUN, str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "nemo_resiliency_plugins: the retry policy" in done.stdout


def test_tasks_of_one_name_have_settings_and_counters_of_their_own(tmp_path: Path) -> None:
    ids, rooms = {"job": 1, "job_1": 2}, []
    for name, restarts in ids.items():
        executor, task = make(tmp_path), run.Script(inline=f"echo {name}")
        executor.job_name = name
        for plugin in (FaultTolerancePlugin(num_in_job_restarts=restarts), PreemptionPlugin()):
            plugin.setup(task, executor)
        rooms.append(executor.launcher.room)
        scripts = tmp_path / "job" / "scripts"
        scripts.mkdir(parents=True, exist_ok=True)
        (scripts / f"{name}.sh").write_text(f"echo {name}")
        node_script = executor.launcher.transform(["bash", f"/nemo_run/scripts/{name}.sh"]).inline
        assert f'NRP_CONFIG="/nemo_run/{rooms[-1]}/config.json"' in node_script
        assert f"/nemo_run/{rooms[-1]}/task-{name}.sh" in node_script
        assert f". /cluster/experiment/job/{rooms[-1]}/retry_policy.sh ||" in executor.setup_lines
    assert rooms == ["nrp", "job_1/nrp"]
    for room, restarts in zip(rooms, ids.values(), strict=True):
        config = json.loads((tmp_path / "job" / room / "config.json").read_text())
        assert f"--max-restarts={restarts}" in config["node"]["options"]


def test_arguments_that_are_no_strings_are_passed_on(tmp_path: Path) -> None:
    executor, task = make(tmp_path), run.Script("train.py", entrypoint="python", args=["--steps", 3])
    executor.run_as_group = True
    for each in (task, run.Script(inline="sleep 9")):
        FaultTolerancePlugin().setup(each, executor)
    executor.create_job_dir()
    assert executor.launcher.transform(["bash", "/nemo_run/scripts/job-1.sh"]) is None
    assert executor.launcher.transform(["python", "train.py", "--steps", 3]).inline.endswith("train.py --steps 3\n")


def test_tasks_that_nobody_can_tell_apart_are_refused(task: run.Script, executor: run.SlurmExecutor) -> None:
    executor.run_as_group = True
    for each in (task, copy.deepcopy(task)):
        FaultTolerancePlugin().setup(each, executor)
    with pytest.raises(ConfigError, match=r"train.py --steps 3.*nobody can tell which of them trains"):
        executor.launcher.transform(["python", "train.py", "--steps", "3"])
