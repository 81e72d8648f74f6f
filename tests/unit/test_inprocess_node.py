from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from nemo_resiliency_plugins.contract import ENV_NOTICE, NOTICE_LAUNCHER
from nemo_resiliency_plugins.runtime.in_process import on_node

NAMED = "open('/proc/self/comm', 'w').write({name!r}); print(flush=True); input()"


@pytest.fixture
def placed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1"}.items():
        monkeypatch.setenv(name, value)


def alive(name: str) -> subprocess.Popen[bytes]:
    """A process of this name, until its input ends."""
    command = [sys.executable, "-c", NAMED.format(name=name)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


@pytest.mark.usefixtures("placed")
def test_a_rank_is_given_what_a_launcher_would_give_it() -> None:
    numbers = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
    place = {"MASTER_ADDR": "host", "MASTER_PORT": "123"}
    assert on_node.of_rank("host:123", noticed=False) == {**numbers, **place}


@pytest.mark.usefixtures("placed")
def test_a_signal_is_a_notice_only_where_the_node_script_has_had_it() -> None:
    assert on_node.of_rank("host:123", noticed=True)[ENV_NOTICE] == NOTICE_LAUNCHER


@pytest.mark.parametrize(("name", "waits"), [("monitor", False), (on_node.STORE, True)])
def test_a_monitor_has_a_limit_and_the_store_has_none(name: str, waits: bool) -> None:
    process = alive(name)
    looks = 0

    def left() -> Iterator[int]:
        nonlocal looks
        looks += 1
        if looks == 6:
            process.communicate(b"\n")
        return iter([process.pid] if process.poll() is None else [])

    began = time.monotonic()
    on_node.linger(left, 0.15)
    assert (looks >= 6) is waits
    assert time.monotonic() - began < 10.0
    if process.poll() is None:
        process.communicate(b"\n")
