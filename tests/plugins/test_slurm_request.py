"""What a user asks of Slurm in odd places and spellings is heeded, or refused with the reason."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import nemo_run as run
import pytest

from nemo_resiliency_plugins import (
    ConfigError,
    ConflictError,
    FaultTolerancePlugin,
    InProcessRestartPlugin,
    PreemptionPlugin,
    StragglerPlugin,
)
from nemo_resiliency_plugins.plugins.slurm_request import split
from tests.plugins.slurm import make, told

Fields = dict[str, Any]


@pytest.mark.parametrize(
    ("fields", "ranks"),
    [
        ({"ntasks_per_node": 8, "gpus_per_task": 1}, 8),
        ({"ntasks_per_node": 4, "gpus_per_node": 8}, 4),
        ({"ntasks_per_node": 1, "gpus_per_node": 8}, 8),
        ({"ntasks_per_node": 1, "gpus_per_node": "a100:8"}, 8),
        ({"ntasks_per_node": 1, "gpus_per_task": 8}, 8),
        ({"ntasks_per_node": 1, "torchrun_nproc_per_node": 6, "gpus_per_node": 8}, 6),
        ({"ntasks_per_node": 1}, 1),
    ],
)
def test_as_many_ranks_start_as_were_asked_for(task: run.Script, tmp_path: Path, fields: Fields, ranks: int) -> None:
    alone, group = make(tmp_path, **fields), [make(tmp_path, **fields), make(tmp_path)]
    for executor in (alone, run.SlurmExecutor.merge(group, num_tasks=2)):
        FaultTolerancePlugin().setup(task, executor)
        assert executor.launcher.ranks_per_node == ranks


def test_the_one_task_of_a_node_gets_what_its_ranks_had(
    task: run.Script, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    executor = make(tmp_path, ntasks_per_node=8, cpus_per_task=12, gpus_per_task="a100:1")
    for plugin in (FaultTolerancePlugin(), FaultTolerancePlugin(), PreemptionPlugin()):
        plugin.setup(task, executor)
    assert (executor.ntasks_per_node, executor.cpus_per_task, executor.gpus_per_task) == (1, 96, "a100:8")
    assert caplog.text.count("cpus_per_task=12 of 8 ranks becomes 96") == 1


@pytest.mark.parametrize(("launcher", "plugin"), [("torchrun", FaultTolerancePlugin()), (None, PreemptionPlugin())])
def test_what_is_meant_for_the_tasks_that_there_are_stays(
    task: run.Script, tmp_path: Path, launcher: str | None, plugin: Any
) -> None:
    executor = make(tmp_path, launcher=launcher, ntasks_per_node=8, cpus_per_task=12)
    plugin.setup(task, executor)
    assert executor.cpus_per_task == 12


def refused(task: run.Script, executor: run.SlurmExecutor, plugin: Any, error: type, text: str) -> None:
    before = copy.deepcopy(executor)
    with pytest.raises(error, match=text):
        plugin.setup(task, executor)
    assert executor == before


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"additional_parameters": {"ntasks_per_node": 4}},
            r"='ntasks-per-node=4'.*a task a node",
        ),
        ({"additional_parameters": {"ntasks-per-node": 4}}, r"additional_parameters='ntasks-per-node=4'"),
        ({"additional_parameters": {"nodes": 4}}, r"additional_parameters='nodes=4'.*nodes=2"),
        ({"srun_args": ["--ntasks-per-node", "4"]}, r"srun_args='ntasks-per-node=4'"),
        ({"srun_args": ["--mpi=pmix", "-n8"]}, r"srun_args='ntasks=8'.*ntasks=2"),
        ({"srun_args": ["-N", "1"]}, r"srun_args='nodes=1'.*nodes=2"),
    ],
)
def test_other_numbers_of_nodes_and_tasks_are_refused(
    task: run.Script, tmp_path: Path, fields: Fields, text: str
) -> None:
    refused(task, make(tmp_path, **fields), FaultTolerancePlugin(), ConflictError, text)


def test_the_same_numbers_in_another_place_are_no_conflict(task: run.Script, tmp_path: Path) -> None:
    of_slurm = {"nodes": 2, "ntasks": 2, "comment": "mine"}
    executor = make(tmp_path, additional_parameters=of_slurm, srun_args=["--nodes=2", "-n", "2"])
    FaultTolerancePlugin().setup(task, executor)
    assert (executor.additional_parameters, executor.srun_args) == (of_slurm, ["--nodes=2", "-n", "2"])
    of_ranks = make(tmp_path, srun_args=["--ntasks-per-node=4"])
    PreemptionPlugin().setup(task, of_ranks)
    assert of_ranks.ntasks_per_node == 4


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("nodes", "16"),
        ("nodes", [2]),
        ("nodes", None),
        ("ntasks_per_node", "16"),
        ("ntasks_per_node", None),
        ("gpus_per_node", "many"),
        ("cpus_per_task", "12"),
        ("retries", None),
        ("retries", "3"),
        ("signal", 15),
        ("setup_lines", ["module load cuda"]),
        ("srun_args", "--mpi=pmix"),
        ("srun_args", ["--ntasks", 3]),
        ("container_env", "A,B"),
        ("additional_parameters", ["x"]),
    ],
)
@pytest.mark.parametrize(
    "plugin",
    [FaultTolerancePlugin(), PreemptionPlugin(), InProcessRestartPlugin(active_world_size=4), StragglerPlugin()],
    ids=lambda plugin: type(plugin).__name__,
)
def test_a_field_of_another_kind_is_refused(
    task: run.Script, tmp_path: Path, plugin: Any, field: str, value: Any
) -> None:
    refused(task, make(tmp_path, **{field: value}), plugin, ConfigError, rf"executor\.{field}=")


@pytest.mark.parametrize("given", [["--wait=600"], ["--wait", "600"], ["-W600"], ["-W", "600"]])
def test_a_longer_wait_of_the_users_holds_in_every_spelling(task: run.Script, tmp_path: Path, given: list[str]) -> None:
    executor = make(tmp_path, srun_args=["--overlap", *given])
    PreemptionPlugin(preempt_time=120).setup(task, executor)
    assert executor.srun_args == ["--overlap", "--wait=600"]


def test_a_wait_that_is_no_number_is_refused(task: run.Script, tmp_path: Path) -> None:
    executor = make(tmp_path, srun_args=["--wait=long"])
    refused(task, executor, PreemptionPlugin(preempt_time=120), ConflictError, "--wait=long.*whole seconds")


def test_other_words_of_srun_stay_in_order() -> None:
    words = ["--network=sn", "-W", "5", "--wait=7", "--waits", "-n4"]
    assert split(words, "wait") == (["5", "7"], ["--network=sn", "--waits", "-n4"])
    assert split(["--ntasks-per-node=3", "--ntasks=6"], "ntasks") == (["6"], ["--ntasks-per-node=3"])


@pytest.mark.parametrize("time", ["0", "00:00:00", 0])
def test_a_limit_of_zero_is_none(task: run.Script, tmp_path: Path, time: Any) -> None:
    executor = make(tmp_path, time=time)
    PreemptionPlugin().setup(task, executor)
    assert (executor.time, executor.signal) == (time, "TERM@60")


@pytest.mark.parametrize("fields", [{"open_mode": "truncate"}, {"additional_parameters": {"open-mode": "truncate"}}])
def test_a_log_that_a_requeue_would_empty_is_told_once(
    task: run.Script, tmp_path: Path, caplog: pytest.LogCaptureFixture, fields: Fields
) -> None:
    executor = make(tmp_path, **fields)
    for plugin in (FaultTolerancePlugin(), PreemptionPlugin()):
        plugin.setup(task, executor)
    assert caplog.text.count("open_mode=truncate empties the log at each requeue") == 1


@pytest.mark.parametrize(
    ("launcher", "text"),
    [
        (run.FaultTolerance(workload_check_interval=9), r"workload_check_interval=9.*to FaultTolerancePlugin"),
        (run.FaultTolerance(log_level="DEBUG"), r"log_level='DEBUG'.*NRP_LOG_LEVEL"),
        (run.FaultTolerance(rank_termination_signal="SIGTERM"), "rank_termination_signal='SIGTERM'"),
        (run.Torchrun(rdzv_backend="static"), "rdzv_backend='static'"),
    ],
)
@pytest.mark.parametrize("plugin", [FaultTolerancePlugin(), PreemptionPlugin()])
def test_a_setting_of_the_launcher_that_would_be_lost_is_refused(
    task: run.Script, tmp_path: Path, plugin: Any, launcher: Any, text: str
) -> None:
    refused(task, make(tmp_path, launcher=launcher), plugin, ConflictError, text)


def test_a_port_of_the_launcher_that_does_nothing_is_told_once(
    task: run.Script, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    executor = make(tmp_path, launcher=run.Torchrun(rdzv_port=31000))
    for plugin in (PreemptionPlugin(), FaultTolerancePlugin()):
        plugin.setup(task, executor)
    assert caplog.text.count("launcher.rdzv_port=31000 has no effect: each attempt takes a port that is free") == 1


OWN_LAUNCHERS = {
    "torchrun": run.Script("train.py", entrypoint="torchrun", args=["--nproc-per-node=8"]),
    "torch.distributed.run": run.Script("torch.distributed.run", m=True, entrypoint="python", args=["train.py"]),
    "python -m torch.distributed.run": run.Script("train.py", entrypoint="python -m torch.distributed.run"),
    "accelerate": run.Script("/opt/venv/bin/accelerate", args=["launch", "train.py"]),
    "a shell": run.Script(inline="cd code\nOMP_NUM_THREADS=1 exec /opt/bin/torchrun --nproc-per-node=8 train.py"),
    "a shell's python": run.Script(inline="python3 -m torch.distributed.run train.py"),
}


@pytest.mark.parametrize("own", OWN_LAUNCHERS.values(), ids=OWN_LAUNCHERS)
def test_a_launcher_in_every_rank_is_refused(tmp_path: Path, own: run.Script) -> None:
    refused(own, make(tmp_path), FaultTolerancePlugin(), ConflictError, "each of them would start .*: 4 on each node")
    refused(own, make(tmp_path, launcher="torchrun"), PreemptionPlugin(), ConflictError, "each of them would start")
    PreemptionPlugin().setup(own, make(tmp_path, ntasks_per_node=1))


def test_a_launcher_in_every_rank_is_refused_on_one_machine(executor: run.LocalExecutor) -> None:
    with pytest.raises(ConflictError, match="each of them would start torchrun: 4 on each node"):
        FaultTolerancePlugin().setup(copy.deepcopy(OWN_LAUNCHERS["torchrun"]), executor)


def test_a_launcher_that_is_the_only_rank_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    FaultTolerancePlugin().setup(OWN_LAUNCHERS["a shell"], make(tmp_path, ntasks_per_node=1))
    assert "each of them would start torchrun. The ranks that it starts are not watched" in caplog.text


def test_a_task_beside_the_training_may_start_what_it_likes(task: run.Script, tmp_path: Path) -> None:
    sidecar = run.Script(inline="srun --overlap nvidia-smi")
    for trains, tasks in enumerate(([task, sidecar], [sidecar, task])):
        executor = run.SlurmExecutor.merge([make(tmp_path)], num_tasks=2)
        for plugin in (FaultTolerancePlugin(trains=trains), PreemptionPlugin(trains=trains)):
            for each in tasks:
                plugin.setup(each, executor)
        with pytest.raises(ConflictError, match="each of them would start srun"):
            FaultTolerancePlugin(trains=1 - trains).plan(sidecar, executor)


@pytest.mark.parametrize("text", ["echo torchrun is not used", "# torchrun train.py", "python train.py --by torchrun"])
def test_the_word_alone_is_no_launcher(tmp_path: Path, text: str) -> None:
    FaultTolerancePlugin().setup(run.Script(inline=text), make(tmp_path))


def test_the_configuration_tells_the_number_of_ranks(task: run.Script, tmp_path: Path) -> None:
    executor = make(tmp_path, ntasks_per_node=8, gpus_per_task=1)
    FaultTolerancePlugin().setup(task, executor)
    assert told(executor)["node"]["nproc"] == 8
