"""What runs once on every node of a Slurm job: meet, start the launcher, wait, and leave nothing behind.

``python -m nemo_resiliency_plugins.runtime.node COMMAND ARGUMENTS``; what else it needs is in ``NRP_CONFIG``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from nemo_resiliency_plugins.compat import nvrx
from nemo_resiliency_plugins.config import InProcessRestartConfig, PreemptionConfig
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
from nemo_resiliency_plugins.runtime import origin, rendezvous
from nemo_resiliency_plugins.runtime.effective import resolve
from nemo_resiliency_plugins.runtime.in_process import on_node
from nemo_resiliency_plugins.runtime.leaving_word import told_if_not_left
from nemo_resiliency_plugins.runtime.log import level_wanted, logger
from nemo_resiliency_plugins.runtime.prestart import waiting
from nemo_resiliency_plugins.runtime.start_command import LauncherMissing, find_launcher, of_launcher, of_rank

SWEEP_S = 10.0
LOOK_S, RANKLESS_S, GRACE_S = 0.5, 10.0, 60.0
RANK_VARIABLE = b"RANK="
"""Stands in the environment of ranks and of nothing else that a launcher starts."""
DEADLY_TO_LAUNCHERS = ("SIGUSR1", "SIGUSR2")
"""torchrun and ft_launcher die of them: they handle SIGTERM, SIGINT, SIGHUP and SIGQUIT alone."""
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
            count=rendezvous.node_count(env),
            attempt=Attempt.from_env(env),
            directory=Path(env[ENV_DIR]),
        )

    @property
    def mark(self) -> str:
        """Stands in the environment of all that is started here; under RANK a node has several node scripts."""
        task = f"-task{self.task}" if self.kind is Kind.RANK else ""
        return f"{self.attempt.name}-node{self.number}{task}"

    @property
    def is_noticed(self) -> bool:
        """Whether the end of this attempt has been announced, here or on another node."""
        return notice_path(self.directory, self.attempt).exists()

    @property
    def is_broken(self) -> bool:
        """Whether another node has failed, so that srun ends the step."""
        return broken_path(self.directory, self.attempt).exists()

    def endpoint(self, deadline_s: float) -> str:
        path = endpoint_path(self.directory, self.attempt)
        if (self.task if self.kind is Kind.RANK else self.number) != 0:
            return rendezvous.await_endpoint(path, deadline_s)
        return rendezvous.publish(path, rendezvous.own_address(os.environ, nodes=self.count))


def main(command: list[str]) -> int:
    """Run the node's part of the attempt and return its exit code."""
    settings = read_config_file(Path(os.environ[ENV_CONFIG]))[NODE_SECTION]
    node = Node.from_env(os.environ, Kind(settings["kind"]))
    logger().info("[node %s] attempt %s on %s", node.number, node.attempt.name, platform.node())
    if node.task == 0:
        origin.tell(node.number)
    try:
        preemption = resolve(PreemptionConfig, None, os.environ)
        signals = preemption.signals if preemption.exit_signal_handler else ()
        received = take_notice(node, {"SIGTERM", *signals})
        shield = [] if node.kind is Kind.RANK else sorted({*DEADLY_TO_LAUNCHERS, *signals})
        started = start_command(settings, node, command, shield)
        lives = restarts_in_process(node)
        own = variables(node.kind, noticed=bool(signals))
        if lives:
            own |= on_node.of_rank(node.endpoint(settings["start_skew_s"]), noticed=bool(signals))
        linger_s = lives.barrier_timeout if lives else None
        code = run(started, node, own, shield, received, preemption.grace_period_s or GRACE_S, linger_s)
        # With spare nodes, or ranks, srun ends nothing when one fails.
        if code != 0 and not node.is_noticed and least_nodes(settings) == node.count and not lives:
            with told_if_not_left("the failure of this node"):
                write_if_first(broken_path(node.directory, node.attempt), f"{node.number}: {code}\n")
        return code
    except ResiliencyError as error:
        if isinstance(error, LauncherMissing):
            with told_if_not_left("what is missing on this node"):
                write_atomically(unstartable_path(node.directory, node.attempt), f"{error}\n")
        logger().error("[node %s] %s", node.number, error)
        return error.exit_code


def restarts_in_process(node: Node) -> InProcessRestartConfig | None:
    """What the ranks of this job are told about it; None where they do not."""
    config = resolve(InProcessRestartConfig, None, os.environ)
    return config if config.enabled and node.kind is Kind.RANK else None


def take_notice(node: Node, names: Iterable[str]) -> set[int]:
    """Slurm signals every process of the step itself; this one notes a preemption and lives on to sweep up.

    Returns:
        The signals that have come, kept up to date.
    """
    received = set()

    def note(number: int, _: object) -> None:
        name = signal.Signals(number).name
        received.add(number)
        if name in names:
            logger().info("[node %s] %s: the end of this attempt is announced", node.number, name)
            with told_if_not_left("the notice"):
                write_if_first(notice_path(node.directory, node.attempt), f"{name}\n")

    for number in FORWARDED_BY_SLURM:
        signal.signal(number, note)
    return received


def start_command(settings: Mapping[str, Any], node: Node, command: list[str], shield: Iterable[str]) -> list[str]:
    """What this node script starts: the launcher of the ranks, or a rank."""
    if node.kind is Kind.RANK:
        return of_rank(command)
    launcher = find_launcher(node.kind)
    if node.kind is Kind.FT:
        nvrx.check_spare_nodes(nvrx.installed_version(), spares=least_nodes(settings) < node.count)
    endpoint = node.endpoint(settings["start_skew_s"])
    meet = nvrx.rendezvous_options(
        endpoint, attempt=node.attempt.name, is_head=node.number == 0, start_skew_s=settings["start_skew_s"]
    )
    monitor = node.directory / MONITOR_FILE if node.kind is Kind.FT else None
    return of_launcher(
        launcher,
        settings,
        command,
        rendezvous=meet,
        monitor_file=monitor,
        shield_from=shield,
        prestart=settings["prestart"],
    )


def least_nodes(settings: Mapping[str, Any]) -> int:
    return int(settings["nnodes"].partition(":")[0])


def variables(kind: Kind, *, noticed: bool) -> dict[str, str]:
    """What the ranks of this node find in their environment."""
    # torch 2.13 restarts ranks into the addresses of their previous start when they share the launcher's store.
    own = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if kind is Kind.TORCHRUN else {}
    level = level_wanted(os.environ)
    if kind is Kind.FT and level is not None:
        own |= nvrx.log_variables(level, nvrx.installed_version())
    return {**own, ENV_NOTICE: NOTICE_ANY if kind is Kind.RANK else NOTICE_LAUNCHER} if noticed else own


def run(
    command: list[str],
    node: Node,
    own: Mapping[str, str],
    shield: Iterable[str],
    received: set[int],
    grace_s: float,
    linger_s: float | None = None,
) -> int:
    """Start ``command``, wait for it, and end whatever it has left running.

    Args:
        own: variables for it.
        shield: names of the signals that it is not to see.
        received: the signals that have come, kept up to date.
        grace_s: seconds that what a shell has started may go on after a notice.
        linger_s: seconds that the monitor of a rank that restarts in its process may go on after it.
    """
    process = start(command, {**os.environ, **own, ENV_NODE_RUN: node.mark}, shield)
    try:
        code = await_end(process, node, received)
        if node.kind is Kind.RANK and -code in received:
            # A shell dies of the signal at once, and the program that it has started is still saving.
            await_children(node.mark, grace_s)
            code = 0
        if linger_s is not None:
            on_node.linger(partial(marked, node.mark), linger_s)
    finally:
        sweep(node.mark)
    logger().info("[node %s] %s ended with %s", node.number, Path(command[0]).name, code)
    return code if code >= 0 else 128 - code


def start(command: list[str], env: Mapping[str, str], shield: Iterable[str]) -> subprocess.Popen[bytes]:
    """No signal of ``shield`` ends the process before it has its own shield up."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.Signals[name] for name in shield})
    try:
        return subprocess.Popen(command, env=env)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def await_end(process: subprocess.Popen[bytes], node: Node, received: set[int]) -> int:
    """The exit code of ``process``; 0 for a launcher that had no ranks left to wait for after a notice."""
    rankless_since = None
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(LOOK_S)
        if node.kind is Kind.RANK or not received:
            continue
        if node.is_broken:
            process.kill()  # srun ends the step, and waits KillWait for what does not end by itself
        elif any(marked(node.mark, ranks_only=True)):
            rankless_since = None
        else:
            rankless_since = rankless_since or time.monotonic()
            if time.monotonic() - rankless_since > RANKLESS_S:
                # A shielded launcher that waits for other nodes does not know that its time is up.
                process.kill()
                process.wait()
                return 0


def await_children(mark: str, limit_s: float) -> None:
    end = time.monotonic() + limit_s
    while any(marked(mark)) and time.monotonic() < end:
        time.sleep(0.1)


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


def marked(mark: str, *, ranks_only: bool = False) -> Iterator[int]:
    """Processes of this node that were started with ``mark`` and still run."""
    wanted = f"{ENV_NODE_RUN}={mark}".encode()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            variables = (path / "environ").read_bytes().split(b"\0")
            name, _, rest = (path / "stat").read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue
        waits = name in (waiting.LOADS, waiting.NAME)
        is_rank = not waits and any(each.startswith(RANK_VARIABLE) for each in variables)
        if wanted in variables and rest.split()[0] != "Z" and (is_rank or not ranks_only):
            yield int(path.name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
