"""A node that is slowed down for real: the training stops, goes on without it, and ends with the same weights."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import nemo_run as run
import psutil
import pytest

from nemo_resiliency_plugins import PreemptionPlugin, StragglerPlugin
from tests.harness import SCRIPTS, wait_for
from tests.slurm.submitting import Submitted, submit
from tests.slurm.testbed import Cluster, processes

STEPS = 100
STOPPED_S, RUNNING_S = 0.25, 0.05
"""A slow node runs its ranks so long, and then not, in turn."""


def train(cluster: Cluster, root: Path, nodes: int = 2, **fields: Any) -> Submitted:
    args = ["--steps", str(STEPS), "--step-s", "0.05"]
    task = run.Script(str(SCRIPTS / "trainer.py"), entrypoint="python", args=args)
    plugins = [StragglerPlugin(report_time_interval=2.0, **fields), PreemptionPlugin()]
    options = {"launcher": "torchrun", "nodes": nodes, "ntasks_per_node": 2}
    return submit(cluster, root, task, plugins, **options)


@pytest.fixture(scope="module")
def undisturbed(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The weights of a run of four ranks on which nobody looks."""
    job = train(cluster, tmp_path_factory.mktemp("undisturbed"))
    assert job.ended() == ("COMPLETED", "0:0"), job.log
    assert not job.events("straggler")
    return job.result()


@contextmanager
def slowed(job: Submitted, node: str) -> Iterator[None]:
    """Stop the ranks on ``node`` most of the time, in whichever attempt they are there."""
    over = threading.Event()

    def ranks() -> list[psutil.Process]:
        on_node = {"SLURMD_NODENAME": node}.items()
        known = {each: processes.environment(each.pid) for each in job.running()}
        return [each for each, variables in known.items() if "RANK" in variables and on_node <= variables.items()]

    def keep_slow() -> None:
        while not over.is_set():
            with suppress(psutil.NoSuchProcess):
                victims = ranks()
                for call, pause in (("suspend", STOPPED_S), ("resume", RUNNING_S)):
                    for victim in victims:
                        getattr(victim, call)()
                    over.wait(pause)

    thread = threading.Thread(target=keep_slow)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def nodes(job: Submitted, attempt: str) -> set[str]:
    """Those on which a session has started in this attempt."""
    started = job.events("session_started")
    return {event["node"] for event in started if event["attempt"] == f"{job.job_id}-{attempt}"}


@pytest.mark.slow
def test_a_slow_node_is_excluded_and_the_weights_are_the_same(
    cluster: Cluster, tmp_path: Path, undisturbed: str
) -> None:
    job = train(cluster, tmp_path, stop_if_detected=True)
    wait_for(lambda: len(job.steps()) > 5, deadline_s=60)
    with slowed(job, "n2"):
        ended = job.ended()
    assert ended == ("COMPLETED", "0:0"), job.log
    assert job.result() == undisturbed
    [stop] = {event["step"]: event for event in job.events("straggler_stop")}.values()
    assert stop["nodes"] == ["n2"]
    assert [event["node"] for event in job.events("node_excluded")] == ["n2"]
    assert job.policy()["excluded"] == "n2"
    assert nodes(job, "0-0") == {"n1", "n2"}
    assert nodes(job, "1-0") == {"n1", "n3"}
    assert [event["step"] for event in job.events("resumed", rank=0)] == [None, stop["step"]]
