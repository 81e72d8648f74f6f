"""What runs once on every node of a Slurm job: meet, start the launcher, wait, and leave nothing behind.

``python -m nemo_resiliency_plugins.runtime.node COMMAND ARGUMENTS``; what else it needs is in ``NRP_CONFIG``.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nemo_resiliency_plugins.compat import nvrx
from nemo_resiliency_plugins.contract import (
    ENV_CONFIG,
    ENV_DIR,
    ENV_NODE_RUN,
    LAUNCH_MODULE,
    MONITOR_FILE,
    Attempt,
    encode_arguments,
    endpoint_path,
    read_config_file,
    unstartable_path,
    write_atomically,
)
from nemo_resiliency_plugins.errors import ResiliencyError
from nemo_resiliency_plugins.runtime import rendezvous
from nemo_resiliency_plugins.runtime.log import logger

SECTION = "node"
NOT_FOUND = 127
SWEEP_S = 10.0
FORWARDED_BY_SLURM = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


@dataclasses.dataclass(frozen=True)
class Node:
    """This node's place in the attempt."""

    number: int
    count: int
    attempt: Attempt
    directory: Path

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Node:
        return cls(
            number=int(env.get("SLURM_NODEID", "0")),
            count=int(env.get("SLURM_STEP_NUM_NODES", env.get("SLURM_NNODES", "1"))),
            attempt=Attempt.from_env(env),
            directory=Path(env[ENV_DIR]),
        )

    @property
    def mark(self) -> str:
        return f"{self.attempt.name}-node{self.number}"

    def endpoint(self, deadline_s: float) -> str:
        path = endpoint_path(self.directory, self.attempt)
        if self.number != 0:
            return rendezvous.await_endpoint(path, deadline_s)
        return rendezvous.publish(path, rendezvous.own_address(os.environ, nodes=self.count))


def main(command: list[str]) -> int:
    """Run the node's part of the attempt and return its exit code."""
    settings = read_config_file(Path(os.environ[ENV_CONFIG]))[SECTION]
    node = Node.from_env(os.environ)
    logger().info("[node %s] attempt %s on %s", node.number, node.attempt.name, platform.node())
    for number in FORWARDED_BY_SLURM:
        # Slurm signals every process of the step itself; this one has to live on to sweep up.
        signal.signal(number, lambda *_: None)
    try:
        least, most = map(int, settings["nnodes"].split(":"))
        nvrx.check_spare_nodes(nvrx.installed_version(), spares=least < most)
        return run(launcher_command(settings, node, command), node)
    except ResiliencyError as error:
        logger().error("[node %s] %s", node.number, error)
        return error.exit_code


def launcher_command(settings: Mapping[str, Any], node: Node, command: list[str]) -> list[str]:
    """The command line of ft_launcher on this node."""
    endpoint = node.endpoint(settings["start_skew_s"])
    script = command[1:] if command[0] in ("python", "python3") else ["--exec", *command]
    return [
        settings["launcher"],
        *nvrx.rendezvous_options(
            endpoint, attempt=node.attempt.name, is_head=node.number == 0, start_skew_s=settings["start_skew_s"]
        ),
        f"--nnodes={settings['nnodes']}",
        f"--nproc-per-node={settings['nproc']}",
        *nvrx.settings_options(node.directory / MONITOR_FILE),
        *settings["options"],
        "-m",
        LAUNCH_MODULE,
        *encode_arguments(script),
    ]


def run(command: list[str], node: Node) -> int:
    """Start ``command``, wait for it, and end whatever it has left running."""
    if shutil.which(command[0]) is None:
        text = f"{command[0]} is not on this node's PATH. {nvrx.INSTALL_HINT}, or start the task with torchrun."
        write_atomically(unstartable_path(node.directory, node.attempt), text + "\n")
        logger().error("[node %s] %s", node.number, text)
        return NOT_FOUND
    process = subprocess.Popen(command, env={**os.environ, ENV_NODE_RUN: node.mark})
    try:
        code = process.wait()
    finally:
        sweep(node.mark)
    logger().info("[node %s] the launcher ended with %s", node.number, code)
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
