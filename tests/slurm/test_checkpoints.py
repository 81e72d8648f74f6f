"""Both tiers of checkpoints on a real Slurm cluster of nodes with a disk each: what is gone on from after each loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nemo_run as run
import pytest

from nemo_resiliency_plugins import CheckpointPlugin, FaultTolerancePlugin, PreemptionPlugin
from nemo_resiliency_plugins.plugins.base import ResiliencyPlugin
from tests.harness import SCRIPTS, wait_for
from tests.slurm.submitting import Submitted, preempt, submit
from tests.slurm.testbed import Cluster

STEPS, RANKS = 50, 4


def train(cluster: Cluster, root: Path, *plugins: ResiliencyPlugin, lose: str = "", **options: Any) -> Submitted:
    """``options``: ``every`` and ``hold_at`` are the script's, the others the executor's."""
    numbers = {"--steps": STEPS, "--every": options.pop("every", 100), "--hold-at": options.pop("hold_at", -1)}
    args = [str(part) for pair in numbers.items() for part in pair]
    task = run.Script(str(SCRIPTS / "local_trainer.py"), entrypoint="python", args=[*args, "--step-s", "0.1"])
    return submit(cluster, root, task, plugins, env={"TEST_LOSE": lose}, nodes=2, ntasks_per_node=2, **options)


def checkpoints(root: Path, *, async_save: bool) -> CheckpointPlugin:
    """The script makes one directory a node of it: the nodes of the testbed share their disk."""
    return CheckpointPlugin(
        async_save=async_save, non_persistent_local_ckpt_dir=str(root / "local"), non_persistent_save_interval=10
    )


@pytest.fixture(scope="module")
def undisturbed(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The weights of a run without any fault."""
    root = tmp_path_factory.mktemp("undisturbed")
    job = train(cluster, root, checkpoints(root, async_save=False), launcher="torchrun")
    assert job.ended() == ("COMPLETED", "0:0"), job.log
    return job.result()


def resumed(job: Submitted) -> list[tuple[int | None, str | None]]:
    """Step and tier that each start went on from, all ranks alike."""
    by_rank = [[(event["step"], event["tier"]) for event in job.events("resumed", rank=rank)] for rank in range(RANKS)]
    assert all(starts == by_rank[0] for starts in by_rank), by_rank
    return by_rank[0]


def lost(job: Submitted) -> list[str]:
    return sorted(text for rank in range(RANKS) for _, text in job.said(rank))


def saved(job: Submitted, tier: str) -> list[int]:
    return [event["step"] for event in job.events("checkpoint", rank=0) if event["tier"] == tier]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lose", "losses"),
    [("", []), ("20:n1,n2,n3", ["after 20: n1 loses 4 shards", "after 20: n2 loses 4 shards"])],
    ids=["kept", "lost"],
)
def test_a_planned_exit_is_gone_on_from_at_its_step_whatever_the_nodes_keep(
    cluster: Cluster, tmp_path: Path, undisturbed: str, lose: str, losses: list[str]
) -> None:
    plugins = (checkpoints(tmp_path, async_save=True), PreemptionPlugin())
    job = train(cluster, tmp_path, *plugins, hold_at=29, lose=lose, partition="low", launcher="torchrun")
    wait_for(lambda: all(len(job.steps(rank)) == 30 for rank in range(RANKS)), deadline_s=60, what="step 30")
    preempt(cluster)
    wait_for(lambda: len(job.events("preemption_notice")) == RANKS, what="the notice")
    (tmp_path / "go").touch()
    assert job.ended() == ("COMPLETED", "0:0"), job.log
    assert resumed(job) == [(None, None), (30, "global")]
    assert lost(job) == losses
    assert (saved(job, "local"), saved(job, "global")) == ([10, 20, 30, 40, 50], [30, 50])
    assert job.result() == undisturbed


@pytest.mark.slow
def test_a_crash_costs_only_what_no_node_holds_any_more(cluster: Cluster, tmp_path: Path, undisturbed: str) -> None:
    crashes = FaultTolerancePlugin(
        rank_heartbeat_timeout=10, warmup_steps=2, fault_script="kill@1:22,kill@2:32,kill@3:44"
    )
    plugins = (checkpoints(tmp_path, async_save=False), crashes)
    job = train(cluster, tmp_path, *plugins, every=12, lose="30:n2/40:n1,n2")
    assert job.ended() == ("COMPLETED", "0:0"), job.log
    assert resumed(job) == [(None, None), (20, "local"), (30, "local"), (36, "global")]
    assert lost(job) == [
        "after 30: n2 loses 4 shards",
        "after 40: n1 loses 4 shards",
        "after 40: n2 loses 4 shards",
    ]
    assert job.attempts() == ["0-0"]
    assert job.result() == undisturbed
