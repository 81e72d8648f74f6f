"""What runs once on every node of a Slurm job, without Slurm: nodes meet, and leave nothing behind."""

from __future__ import annotations

import dataclasses
import os
import re
import select
import shlex
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from nemo_resiliency_plugins import FaultTolerancePlugin
from nemo_resiliency_plugins.contract import ENV_DIR, ENV_NODE_RUN, Attempt, ExitCode, endpoint_path, read_events
from nemo_resiliency_plugins.errors import ConfigError
from nemo_resiliency_plugins.runtime import rendezvous
from tests.harness import BIN, Job, json_lines, spawn, wait_for
from tests.slurm.testbed import processes
from tests.versions.nodes import node_variables, write_job

NODE = [sys.executable, "-m", "nemo_resiliency_plugins.runtime.node", "python"]
SKEW_S = 20
DEADLINE_S = 90.0
DEFAULT_PORTS = (29400, 29500)
"""Where torch's launchers and process groups listen when nobody says otherwise."""

NOTE = """
import json, os, pathlib, signal, time
root = pathlib.Path(os.environ["TEST_ROOT"])
names = ("RANK", "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT", "NRP_ROUND", "SLURM_NODEID")
with (root / f"starts-{os.environ['SLURM_NODEID']}.txt").open("a") as file:
    file.write(json.dumps({**{name: os.environ.get(name) for name in names}, "pid": os.getpid()}) + "\\n")
"""
UNTIL_RELEASED = """
while not (root / "released").exists():
    time.sleep(0.05)
"""
STUBBORN = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
(root / f"stubborn-{os.getpid()}").touch()
time.sleep(600)
"""


@dataclasses.dataclass(frozen=True)
class Nodes:
    """A job of several nodes, all of them on this machine."""

    root: Path
    job_id: str
    count: int = 1

    def write(self, script: str, **fields: Any) -> Nodes:
        self.root.mkdir(parents=True, exist_ok=True)
        (self.root / "script.py").write_text(script)
        plugin = FaultTolerancePlugin(**{"num_in_job_restarts": 0, "start_skew_s": 60, **fields})
        write_job(self.root, plugin, nodes=self.count, ranks_per_node=1)
        return self

    def start(self, number: int, *, after_s: float = 0, round_: int = 0, env: Mapping[str, str] = {}) -> Job:
        """Start one node; its log is in a directory of its own."""
        variables = node_variables(self.root, self.job_id, number, self.count)
        own = {"NRP_ROUND": str(round_), "TEST_ROOT": str(self.root), "PATH": f"{BIN}:{os.environ['PATH']}"}
        directory = self.root / f"node{number}-{round_}"
        directory.mkdir()
        command = [*NODE, str(self.root / "script.py")]
        late = ["sh", "-c", f"sleep {after_s}; exec {shlex.join(command)}"]
        return spawn(directory, late if after_s else command, {**variables, **own, **env})

    def attempt(self, round_: int = 0) -> Attempt:
        return Attempt(job_id=self.job_id, round=round_)

    def endpoint(self, round_: int = 0) -> Path:
        return endpoint_path(self.root / "nrp", self.attempt(round_))

    def starts(self, number: int) -> list[dict[str, Any]]:
        """What the rank of a node has written down, a line each time it was started."""
        path = self.root / f"starts-{number}.txt"
        return json_lines(path) if path.exists() else []

    def marked(self, number: int = 0) -> list[psutil.Process]:
        """The processes that this node has started and that still run."""
        return processes.unique(processes.matching({ENV_NODE_RUN: f"{self.attempt().name}-node{number}"}))

    @contextmanager
    def ended_afterwards(self) -> Iterator[None]:
        """A node lives on when it is told to end, so that one and all below it are killed."""
        try:
            yield
        finally:
            processes.kill(lambda: processes.unique(processes.matching({ENV_DIR: str(self.root / "nrp")})))


def succeed(*jobs: Job) -> None:
    for job in jobs:
        job.succeed(DEADLINE_S)


@contextmanager
def held(ports: tuple[int, ...]) -> Iterator[list[socket.socket]]:
    """Ports as a leftover process holds them; 0 is any. One that another process holds already needs no help."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in ports]
        for listener, port in zip(sockets, ports, strict=True):
            with suppress(OSError):
                listener.bind(("", port))
                listener.listen()
        yield sockets


def apart(late: int) -> Callable[[Nodes], tuple[Nodes, float]]:
    def case(nodes: Nodes) -> tuple[Nodes, float]:
        nodes = dataclasses.replace(nodes, count=2).write(NOTE)
        began = time.monotonic()
        with nodes.ended_afterwards():
            succeed(nodes.start(late, after_s=SKEW_S), nodes.start(1 - late))
        return nodes, time.monotonic() - began

    return case


def side_by_side(nodes: Nodes) -> list[Nodes]:
    two = [Nodes(nodes.root / name, f"{nodes.job_id}{name}").write(NOTE + UNTIL_RELEASED) for name in "ab"]
    with held(DEFAULT_PORTS), two[0].ended_afterwards(), two[1].ended_afterwards():
        jobs = [job.start(0) for job in two]
        wait_for(lambda: all(job.starts(0) for job in two), deadline_s=DEADLINE_S, what="both ranks at once")
        for job in two:
            (job.root / "released").touch()
        succeed(*jobs)
    return two


def after_a_stale_attempt(nodes: Nodes) -> tuple[Nodes, bool]:
    """The nodes, and whether any process has turned to the endpoint of the attempt before."""
    nodes = dataclasses.replace(nodes, count=2).write(NOTE)
    with held((0,)) as [stale], nodes.ended_afterwards():
        nodes.endpoint().write_text(f"127.0.0.1:{stale.getsockname()[1]}\n")
        succeed(nodes.start(1, round_=1), nodes.start(0, after_s=3, round_=1))
        return nodes, bool(select.select([stale], [], [], 0)[0])


def killed_three_times(nodes: Nodes) -> Nodes:
    nodes = dataclasses.replace(nodes, count=2).write(NOTE + UNTIL_RELEASED, num_in_job_restarts=4)
    with nodes.ended_afterwards():
        jobs = [nodes.start(0), nodes.start(1)]
        for incarnation, victim in enumerate((0, 1, 0), start=1):
            wait_for_incarnation(nodes, incarnation)
            os.kill(nodes.starts(victim)[-1]["pid"], signal.SIGKILL)
        wait_for_incarnation(nodes, 4)
        (nodes.root / "released").touch()
        succeed(*jobs)
    return nodes


def wait_for_incarnation(nodes: Nodes, incarnation: int) -> None:
    def complete() -> bool:
        return all(len(nodes.starts(number)) >= incarnation for number in range(nodes.count))

    wait_for(complete, deadline_s=DEADLINE_S, what=f"incarnation {incarnation}")


def killed_launcher(nodes: Nodes) -> tuple[int, list[int]]:
    """Exit code of the node, and what of it still ran then."""
    nodes.write(NOTE + STUBBORN)
    with nodes.ended_afterwards():
        job = nodes.start(0)
        wait_for(lambda: len(stubborn(nodes)) == 2, deadline_s=DEADLINE_S, what="the rank and its child")
        assert set(stubborn(nodes)) <= {process.pid for process in nodes.marked()}
        [launcher] = [process for process in nodes.marked() if process.ppid() == job.process.pid]
        launcher.kill()
        return job.wait(15.0), [process.pid for process in nodes.marked()]


def stubborn(nodes: Nodes) -> list[int]:
    return [int(path.name.partition("-")[2]) for path in nodes.root.glob("stubborn-*")]


Cases = Mapping[str, Callable[[Nodes], Any]]
LATE: Cases = {"late_head": apart(0), "late_other": apart(1)}
CASES: Cases = {
    "killed_three_times": killed_three_times,
    "stale": after_a_stale_attempt,
    "side_by_side": side_by_side,
    "killed_launcher": killed_launcher,
}
Results = Mapping[str, "Future[Any]"]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Results]:
    yield from started(CASES, tmp_path_factory.mktemp("nodes"))


@pytest.fixture(scope="module")
def late_results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Results]:
    yield from started(LATE, tmp_path_factory.mktemp("late"))


def started(cases: Cases, root: Path) -> Iterator[Results]:
    """All cases side by side, because most of their time is waiting."""
    with ThreadPoolExecutor(len(cases)) as pool:
        jobs = {name: Nodes(root / name, f"node{os.getpid()}{name}") for name in cases}
        yield {name: pool.submit(case, jobs[name]) for name, case in cases.items()}


@pytest.mark.slow
@pytest.mark.parametrize("late", LATE)
def test_nodes_that_start_20_s_apart_meet(late_results: Results, late: str) -> None:
    nodes, took_s = late_results[late].result()
    assert took_s >= SKEW_S
    [one], [other] = nodes.starts(0), nodes.starts(1)
    assert {one["RANK"], other["RANK"]} == {"0", "1"}
    assert one["MASTER_PORT"] == other["MASTER_PORT"]


def test_without_a_head_node_a_node_gives_up_after_the_start_skew(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path / "job", f"node{os.getpid()}alone", count=2).write(NOTE, start_skew_s=2)
    began = time.monotonic()
    job = nodes.start(1)
    with nodes.ended_afterwards():
        assert job.wait(30.0) == ExitCode.USAGE
    assert time.monotonic() - began >= 2
    assert f"'{nodes.endpoint()}': the head node has not published its endpoint there within 2 s" in job.log
    assert "file system that all nodes share" in job.log
    assert not nodes.starts(1)


def test_the_level_of_the_log_holds_for_launcher_monitors_and_ranks(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path / "job", f"node{os.getpid()}level").write(NOTE)
    with nodes.ended_afterwards():
        job = nodes.start(0, env={"NRP_LOG_LEVEL": "error"})
        job.succeed(DEADLINE_S)
    assert len(nodes.starts(0)) == 1
    assert not re.findall(r".*\[(?:INFO|WARNING)\].*", job.log)


def test_two_jobs_and_leftover_ports_do_not_collide(results: Results) -> None:
    one, other = results["side_by_side"].result()
    assert [len(job.starts(0)) for job in (one, other)] == [1, 1]
    assert one.endpoint().read_text() != other.endpoint().read_text()


def test_an_attempt_publishes_its_own_endpoint_and_leaves_the_stale_one_alone(results: Results) -> None:
    nodes, asked = results["stale"].result()
    assert not asked
    assert nodes.endpoint(1).read_text() != nodes.endpoint(0).read_text()
    assert [line["NRP_ROUND"] for number in (0, 1) for line in nodes.starts(number)] == ["1", "1"]


def test_ranks_agree_on_every_incarnation_after_failures_on_either_node(results: Results) -> None:
    nodes = results["killed_three_times"].result()
    pairs = list(zip(nodes.starts(0), nodes.starts(1), strict=True))
    assert len(pairs) == 4
    for pair in pairs:
        assert {line["RANK"] for line in pair} == {"0", "1"}
        assert len({line["MASTER_PORT"] for line in pair}) == 1
    assert len({line["MASTER_PORT"] for line in nodes.starts(0)}) == 4
    assert {event["attempt"] for event in read_events(nodes.root / "nrp")} == {nodes.attempt().name}


def test_a_killed_launcher_leaves_nothing_running(results: Results) -> None:
    assert results["killed_launcher"].result() == (128 + signal.SIGKILL, [])


@pytest.fixture
def only_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose name stands for 127.0.1.1, as on Debian, and that has no route."""
    monkeypatch.setattr(rendezvous, "_of_host_name", lambda: ["127.0.1.1"])
    monkeypatch.setattr(rendezvous, "_of_default_route", list)


def own_interface() -> tuple[str, str]:
    """Name and IPv4 address of an interface of this machine, lo only where there is no other."""
    found = [
        (name, entry.address)
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family == socket.AF_INET
    ]
    return min(found, key=lambda pair: pair[1].startswith("127."))


@pytest.mark.parametrize("variable", ["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"])
@pytest.mark.usefixtures("only_loopback")
def test_the_address_is_that_of_the_named_interface(variable: str) -> None:
    name, address = own_interface()
    assert rendezvous.own_address({variable: name}, nodes=1) == address


def test_the_named_interface_wins_over_the_host_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "_of_host_name", lambda: ["198.51.100.7"])
    monkeypatch.setattr(rendezvous, "_address_of", {"lo": "203.0.113.5"}.get)
    assert rendezvous.own_address({"GLOO_SOCKET_IFNAME": "lo"}, nodes=2) == "203.0.113.5"
    assert rendezvous.own_address({"GLOO_SOCKET_IFNAME": "none"}, nodes=2) == "198.51.100.7"


@pytest.mark.usefixtures("only_loopback")
def test_several_nodes_cannot_meet_on_loopback() -> None:
    with pytest.raises(ConfigError, match="Set NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME"):
        rendezvous.own_address({}, nodes=2)


@pytest.mark.usefixtures("only_loopback")
def test_one_node_meets_itself_on_loopback() -> None:
    assert rendezvous.own_address({}, nodes=1) == "127.0.0.1"


@pytest.mark.usefixtures("only_loopback")
@pytest.mark.parametrize("value", ["^none,{name}", "={name}0"])
def test_an_interface_that_is_excluded_or_has_another_name_is_not_chosen(value: str) -> None:
    name, _ = own_interface()
    assert rendezvous.own_address({"NCCL_SOCKET_IFNAME": value.format(name=name)}, nodes=1) == "127.0.0.1"
