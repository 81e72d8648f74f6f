"""What runs once on every node of a Slurm job: meet, start the launcher, wait, and leave nothing behind.

``python -m nemo_resiliency_plugins.runtime.node COMMAND ARGUMENTS``; what else it needs is in ``NRP_CONFIG``.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from nemo_resiliency_plugins.compat import nvrx
from nemo_resiliency_plugins.config import PreemptionConfig
from nemo_resiliency_plugins.contract import (
    ENV_CONFIG,
    ENV_DIR,
    ENV_NODE_RUN,
    ENV_NOTICE,
    MONITOR_FILE,
    NODE_SECTION,
    NOTICE_ANY,
    NOTICE_LAUNCHER,
    Attempt,
    Kind,
    broken_path,
    endpoint_path,
    notice_path,
    read_config_file,
    unstartable_path,
    write_atomically,
    write_if_first,
)
from nemo_resiliency_plugins.errors import ResiliencyError
from nemo_resiliency_plugins.runtime import rendezvous
from nemo_resiliency_plugins.runtime.effective import resolve
from nemo_resiliency_plugins.runtime.log import logger
from nemo_resiliency_plugins.runtime.start_command import LauncherMissing, find_launcher, of_launcher, of_rank

SWEEP_S = 10.0
FORWARDED_BY_SLURM = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


@dataclasses.dataclass(frozen=True)
class Node:
    """This node's place in the attempt."""

    number: int
    count: int
    attempt: Attempt
    directory: Path
    kind: Kind
    task: int

    @classmethod
    def from_env(cls, env: Mapping[str, str], kind: Kind) -> Node:
        return cls(
            kind=kind,
            task=int(env.get("SLURM_PROCID", "0")),
            number=int(env.get("SLURM_NODEID", "0")),
            count=int(env.get("SLURM_STEP_NUM_NODES", env.get("SLURM_NNODES", "1"))),
            attempt=Attempt.from_env(env),
            directory=Path(env[ENV_DIR]),
        )

    @property
    def mark(self) -> str:
        """Stands in the environment of all that is started here; under RANK a node has several node scripts."""
        task = f"-task{self.task}" if self.kind is Kind.RANK else ""
        return f"{self.attempt.name}-node{self.number}{task}"

    def endpoint(self, deadline_s: float) -> str:
        path = endpoint_path(self.directory, self.attempt)
        if self.number != 0:
            return rendezvous.await_endpoint(path, deadline_s)
        return rendezvous.publish(path, rendezvous.own_address(os.environ, nodes=self.count))


def main(command: list[str]) -> int:
    """Run the node's part of the attempt and return its exit code."""
    settings = read_config_file(Path(os.environ[ENV_CONFIG]))[NODE_SECTION]
    node = Node.from_env(os.environ, Kind(settings["kind"]))
    logger().info("[node %s] attempt %s on %s", node.number, node.attempt.name, platform.node())
    try:
        preemption = resolve(PreemptionConfig, None, os.environ)
        signals = preemption.signals if preemption.exit_signal_handler else ()
        received = take_notice(node, {"SIGTERM", *signals})
        code = run(start_command(settings, node, command, signals), node, variables(node.kind, noticed=bool(signals)))
        if code != 0 and not received:
            write_if_first(broken_path(node.directory, node.attempt), f"{node.number}: {code}\n")
        return code
    except ResiliencyError as error:
        if isinstance(error, LauncherMissing):
            write_atomically(unstartable_path(node.directory, node.attempt), f"{error}\n")
        logger().error("[node %s] %s", node.number, error)
        return error.exit_code


def take_notice(node: Node, names: Iterable[str]) -> list[str]:
    """Slurm signals every process of the step itself; this one notes a preemption and lives on to sweep up.

    Returns:
        The names of the signals that have come, kept up to date.
    """
    received = []

    def note(number: int, _: object) -> None:
        name = signal.Signals(number).name
        received.append(name)
        if name in names:
            logger().info("[node %s] %s: the end of this attempt is announced", node.number, name)
            write_if_first(notice_path(node.directory, node.attempt), f"{name}\n")

    for number in FORWARDED_BY_SLURM:
        signal.signal(number, note)
    return received


def start_command(settings: Mapping[str, Any], node: Node, command: list[str], signals: Iterable[str]) -> list[str]:
    """What this node script starts: the launcher of the ranks, or a rank."""
    if node.kind is Kind.RANK:
        return of_rank(command)
    launcher = find_launcher(node.kind)
    if node.kind is Kind.FT:
        least, most = map(int, settings["nnodes"].split(":"))
        nvrx.check_spare_nodes(nvrx.installed_version(), spares=least < most)
    endpoint = node.endpoint(settings["start_skew_s"])
    meet = nvrx.rendezvous_options(
        endpoint, attempt=node.attempt.name, is_head=node.number == 0, start_skew_s=settings["start_skew_s"]
    )
    monitor = node.directory / MONITOR_FILE if node.kind is Kind.FT else None
    return of_launcher(launcher, settings, command, rendezvous=meet, monitor_file=monitor, shield_from=signals)


def variables(kind: Kind, *, noticed: bool) -> dict[str, str]:
    """What the ranks of this node find in their environment."""
    # torch 2.13 restarts ranks into the addresses of their previous start when they share the launcher's store.
    own = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if kind is Kind.TORCHRUN else {}
    return {**own, ENV_NOTICE: NOTICE_ANY if kind is Kind.RANK else NOTICE_LAUNCHER} if noticed else own


def run(command: list[str], node: Node, own: Mapping[str, str]) -> int:
    """Start ``command``, wait for it, and end whatever it has left running."""
    process = subprocess.Popen(command, env={**os.environ, **own, ENV_NODE_RUN: node.mark})
    try:
        code = process.wait()
    finally:
        sweep(node.mark)
    logger().info("[node %s] %s ended with %s", node.number, Path(command[0]).name, code)
    return code if code >= 0 else 128 - code


def sweep(mark: str) -> None:
    """Kill all processes that carry ``mark``: a SIGKILLed launcher leaves its ranks and monitors running."""
    end = time.monotonic() + SWEEP_S
    while (left := list(marked(mark))) and time.monotonic() < end:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.05)


def marked(mark: str) -> Iterator[int]:
    """Processes of this node that were started with ``mark`` in their environment and still run."""
    wanted = f"{ENV_NODE_RUN}={mark}".encode()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            variables = (path / "environ").read_bytes().split(b"\0")
            running = (path / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            continue
        if wanted in variables and running:
            yield int(path.name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
