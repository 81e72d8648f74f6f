"""What a node script makes of Slurm's signals, without Slurm: all processes of the step get them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from nemo_resiliency_plugins import FaultTolerancePlugin, PreemptionPlugin
from nemo_resiliency_plugins.contract import ENV_DIR, Attempt, broken_path, notice_path, unstartable_path
from nemo_resiliency_plugins.plugins.base import ResiliencyPlugin
from tests.harness import BIN, Job, spawn, wait_for
from tests.slurm.testbed import processes
from tests.versions.nodes import node_variables, write_job

JOB = f"signals{os.getpid()}"
ATTEMPT = Attempt(JOB)
SAVES = """
import os, pathlib, signal, time
root = pathlib.Path(os.environ["TEST_ROOT"])

def save(*_):
    time.sleep(1.0)
    (root / "saved").touch()
    raise SystemExit(0)

signal.signal(signal.SIGTERM, save)
(root / "up").touch()
while True:
    time.sleep(0.05)
"""
WAITS = """
import os, pathlib, time
root = pathlib.Path(os.environ["TEST_ROOT"])
with (root / "up").open("a") as file:
    file.write("up\\n")
while not (root / "released").exists():
    time.sleep(0.05)
"""


class Step:
    """The step of a job on its first node."""

    def __init__(self, root: Path, *plugins: ResiliencyPlugin, nodes: int = 1, launcher: str | None = None) -> None:
        self.root, self._nodes = root, nodes
        write_job(root, *plugins, nodes=nodes, ranks_per_node=1, launcher=launcher)

    def start(self, *command: str) -> Job:
        variables = node_variables(self.root, JOB, 0, self._nodes)
        node = [sys.executable, "-m", "nemo_resiliency_plugins.runtime.node", *command]
        return spawn(self.root, node, {**variables, "PATH": f"{BIN}:{os.environ['PATH']}"})

    def script(self, text: str) -> str:
        path = self.root / "script.py"
        path.write_text(text)
        return str(path)

    def await_up(self) -> None:
        wait_for((self.root / "up").exists, deadline_s=60, what="the script")

    def processes(self) -> list[psutil.Process]:
        return processes.matching({ENV_DIR: str(self.root / "nrp")})

    def has_launcher(self) -> bool:
        lines = [" ".join(each.cmdline()) for each in self.processes()]
        return any("--rdzv-endpoint" in line for line in lines)

    def signal(self, number: int = signal.SIGTERM) -> None:
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    @contextmanager
    def ended_afterwards(self) -> Iterator[None]:
        try:
            yield
        finally:
            processes.kill(lambda: processes.unique(self.processes()))

    @property
    def is_noticed(self) -> bool:
        return notice_path(self.root / "nrp", ATTEMPT).exists()

    @property
    def is_broken(self) -> bool:
        return broken_path(self.root / "nrp", ATTEMPT).exists()


def test_a_program_that_a_shell_has_started_may_save(tmp_path: Path) -> None:
    step = Step(tmp_path, PreemptionPlugin())
    script = step.script(SAVES)
    with step.ended_afterwards():
        job = step.start("bash", "-c", f"{sys.executable} {script}; echo never reached")
        step.await_up()
        step.signal()
        assert job.wait(30) == 0
    assert (tmp_path / "saved").exists()
    assert (step.is_noticed, step.is_broken) == (True, False)


@pytest.mark.parametrize(
    ("plugins", "launcher"), [([PreemptionPlugin()], "torchrun"), ([FaultTolerancePlugin(), PreemptionPlugin()], None)]
)
def test_a_launcher_that_waits_for_other_nodes_is_ended(
    tmp_path: Path, plugins: list[ResiliencyPlugin], launcher: str | None
) -> None:
    step = Step(tmp_path, *plugins, nodes=2, launcher=launcher)
    with step.ended_afterwards():
        job = step.start("python", step.script(WAITS))
        wait_for(step.has_launcher, deadline_s=30, what="the launcher")
        step.signal()
        assert job.wait(40) == 0
        assert not processes.unique(step.processes())
    assert not (tmp_path / "up").exists()


def test_no_launcher_dies_of_a_signal_that_it_does_not_know(tmp_path: Path) -> None:
    step = Step(tmp_path, FaultTolerancePlugin())
    with step.ended_afterwards():
        job = step.start("python", step.script("import signal; signal.signal(signal.SIGUSR1, print)\n" + WAITS))
        step.await_up()
        step.signal(signal.SIGUSR1)
        (tmp_path / "released").touch()
        job.succeed(60)
    assert (tmp_path / "up").read_text() == "up\n", "the script is started once"


@pytest.mark.parametrize("plugins", [[PreemptionPlugin()], [FaultTolerancePlugin()]], ids=["srun", "ft_launcher"])
def test_an_entrypoint_of_several_words_runs(tmp_path: Path, plugins: list[ResiliencyPlugin]) -> None:
    step = Step(tmp_path, *plugins)
    (tmp_path / "released").touch()
    with step.ended_afterwards():
        step.start("python -u", step.script(WAITS)).succeed(60)
    assert (tmp_path / "up").exists()
    assert not unstartable_path(tmp_path / "nrp", ATTEMPT).exists()


def test_after_a_notice_no_other_program_is_started_again(tmp_path: Path) -> None:
    step = Step(tmp_path, FaultTolerancePlugin(num_in_job_restarts=3), PreemptionPlugin())
    text = 'echo up >> "$TEST_ROOT/up"; for _ in {1..600}; do sleep 0.1; done'
    with step.ended_afterwards():
        job = step.start("bash", "-c", text)
        step.await_up()
        step.signal()
        job.succeed(60)
    assert (tmp_path / "up").read_text() == "up\n"
    assert step.is_noticed


def test_a_failure_is_noted_only_where_nothing_was_announced_before(tmp_path: Path) -> None:
    step = Step(tmp_path, PreemptionPlugin())
    with step.ended_afterwards():
        assert step.start("bash", "-c", "exit 3").wait(30) == 3
        assert step.is_broken
        broken_path(tmp_path / "nrp", ATTEMPT).unlink()
        notice_path(tmp_path / "nrp", ATTEMPT).write_text("SIGTERM\n")
        assert step.start("bash", "-c", "exit 3").wait(30) == 3
    assert not step.is_broken


def test_with_spare_nodes_the_failure_of_one_ends_nothing(tmp_path: Path) -> None:
    step = Step(tmp_path, FaultTolerancePlugin(spare_nodes=1), nodes=2)
    with step.ended_afterwards():
        assert step.start("python", step.script("print()")).wait(60) != 0  # NVRx 0.4.1 cannot keep spares
    assert not step.is_broken
