"""What a function under in-process restart is given, and how its calls begin."""

from __future__ import annotations

import os
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from nemo_resiliency_plugins import runtime
from nemo_resiliency_plugins.compat import gloo
from nemo_resiliency_plugins.compat.inprocess import names
from nemo_resiliency_plugins.config import InProcessRestartConfig
from nemo_resiliency_plugins.contract import write_atomically
from nemo_resiliency_plugins.runtime.in_process import server
from nemo_resiliency_plugins.runtime.in_process.server import connections
from nemo_resiliency_plugins.runtime.rendezvous import free_port
from tests import lives, ranks, training
from tests.harness import wait_for
from tests.lives import Options

if TYPE_CHECKING:
    from nvidia_resiliency_ext.inprocess import CallWrapper

ENABLED = {"NRP_INPROCESS__ENABLED": "true"}


def plain(said: str) -> str:
    dist.init_process_group("gloo")
    dist.barrier()
    note(said)
    fail_once()
    return said


def annotated(said: str, call: CallWrapper | None = None) -> str:
    assert isinstance(call, names().call_wrapper)
    dist.init_process_group("gloo")
    dist.barrier()
    note(f"{said}{call.iteration}")
    fail_once()
    return said


def note(text: str) -> None:
    training.note(text, lives.life(), os.environ["MASTER_PORT"])


def fail_once() -> None:
    if lives.life() == 0 and dist.get_rank() == 1:
        raise ValueError("once")


def call_both(_: Options) -> None:
    short = InProcessRestartConfig(**{**lives.SHORT, "enabled": False})  # the variable switches it on
    for number, function in enumerate((plain, annotated)):
        result = runtime.inprocess(function, short)(f"f{number}-")
        assert result == f"f{number}-"
        dist.destroy_process_group()


def test_with_and_without_the_parameter_each_life_has_a_namespace_of_its_own(tmp_path: Path) -> None:
    group = lives.run(tmp_path, 2, Options(), body=call_both, env=ENABLED)
    for rank in (0, 1):
        notes = group.notes(rank)
        assert [(each.what, each.step) for each in notes] == [("f0-", 0), ("f0-", 1), ("f1-0", 0), ("f1-1", 1)]
        assert len({each.text for each in notes}) == 4


def enabled_and_nothing_else(options: Options) -> None:
    result = runtime.inprocess(lives.train)(options)
    (training.root() / f"result-{os.environ['RANK']}.txt").write_text(result)


def test_enabled_is_all_that_must_be_said(tmp_path: Path) -> None:
    group = lives.run(tmp_path, 2, Options(steps=4), body=enabled_and_nothing_else, env=ENABLED)
    assert len(lives.results(group)) == 2


def nodes_of_different_size(options: Options) -> None:
    os.environ["SLURMD_NODENAME"] = "a" if os.environ["RANK"] == "0" else "b"
    runtime.inprocess(lives.train, InProcessRestartConfig(**{**lives.SHORT, "granularity": "node"}))(options)


def test_nodes_that_cannot_leave_as_a_whole_are_refused(tmp_path: Path) -> None:
    with lives.started(tmp_path, 3, Options(), body=nodes_of_different_size) as group:
        assert group.codes(60.0) == [1, 1, 1]
    assert "InProcessRestartConfig.granularity={'a': 1, 'b': 2}" in group.log
    assert 'Set granularity="rank"' in group.log


def wait_in_vain() -> None:
    """Rank 0 waits in a collective that rank 1 never joins."""
    released = threading.Event()

    def release() -> None:
        wait_for(lambda: (training.root() / "waiting").exists())
        time.sleep(0.3)  # for the collective to begin
        assert gloo.shut_down_connections() > 0

    threading.Thread(target=release, daemon=True).start()
    if dist.get_rank() == 1:
        wait_for(lambda: (training.root() / "freed").exists())
        os._exit(0)
    (training.root() / "waiting").touch()
    try:
        dist.all_reduce(torch.ones(1))
    except RuntimeError:
        released.set()
    assert released.is_set()
    (training.root() / "freed").touch()
    os._exit(0)


def test_a_rank_that_waits_in_gloo_is_freed_by_shutting_its_connections(tmp_path: Path) -> None:
    ranks.run(tmp_path, 2, wait_in_vain, deadline_s=20.0)


def serve(_: Options) -> None:
    server.start()
    server.start()
    write_atomically(training.root() / "port", os.environ["MASTER_PORT"])
    wait_for(lambda: (training.root() / "end").exists())


def connected(port: int) -> Any:
    make: Any = dist.TCPStore  # type: ignore[attr-defined]
    return make("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=2))


def test_the_store_outlives_all_clients_as_long_as_its_rank_lives(tmp_path: Path) -> None:
    with lives.started(tmp_path, 1, Options(), body=serve) as group:
        wait_for((tmp_path / "port").exists)
        port = int((tmp_path / "port").read_text())
        client = connected(port)
        client.set("key", "value")
        del client
        dropped = time.monotonic()
        wait_for(lambda: time.monotonic() - dropped > 2 * server.IDLE_S)
        client = connected(port)
        assert client.get("key") == b"value"
        (tmp_path / "end").touch()
        group.succeed()
        assert client.get("key") == b"value"
        del client
        wait_for(lambda: connections(port) == 0)
    assert "there before" in group.log


def test_the_stores_clients_are_counted_by_its_port() -> None:
    port = free_port()
    master: Any = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    assert connections(port) == 1
    client: Any = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)  # type: ignore[attr-defined]
    assert connections(port) == 2
    assert gloo.shut_down_store(port) > 0
    wait_for(lambda: connections(port) == 0)
    del client, master
