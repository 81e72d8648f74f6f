"""The pauses of each version's rendezvous, in a process of its own: what is shortened there stays so."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.harness import clean_env
from tests.versions.conftest import EACH, INSTALLED, version_env

LOOK = """
import importlib, json, sys, time
slept = []
time.sleep = slept.append
from nemo_resiliency_plugins.compat import rendezvous_pause
launcher, nodes = sys.argv[1], int(sys.argv[2])
rendezvous_pause.shorten(launcher, nodes)
found = {}
for name in rendezvous_pause.RENDEZVOUS.get(launcher.rpartition("/")[2], ()):
    try:
        module = importlib.import_module(name)
    except ImportError:
        continue
    wait = getattr(module, "_delay", None) or module.time.sleep
    for seconds in (1, 0.05, 2.5):
        wait(seconds)
    assert getattr(module, "time", time).monotonic() > 0
    if hasattr(module, "_delay"):
        holder = module._BackendRendezvousStateHolder(None, None)
        assert holder._cache_duration == slept[0]
    found[name.rpartition(".")[2]], slept[:] = [*slept], []
print(json.dumps(found))
"""
LEGACY, BARRIER, TORCH = "_ft_rendezvous", "ft_rendezvous_barrier", "dynamic_rendezvous"


OTHER_TORCH = """
import importlib
from nemo_resiliency_plugins.compat import rendezvous_pause
[name] = rendezvous_pause.RENDEZVOUS["torchrun"]
module = importlib.import_module(name)
del module._BackendRendezvousStateHolder
rendezvous_pause.shorten("torchrun", 1)
"""


def pauses(launcher: str, nodes: int, version: str = INSTALLED) -> dict[str, list[float]]:
    """What is slept where 1, 0.05 and 2.5 s would be."""
    command = [sys.executable, "-W", "ignore", "-c", LOOK, launcher, str(nodes)]
    done = subprocess.run(command, env=clean_env(version_env(version)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(("nodes", "pause"), [(10, 0.1), (50, 0.5), (100, 1)])
def test_the_more_nodes_the_longer(nodes: int, pause: float) -> None:
    assert pauses("/usr/bin/torchrun", nodes) == {TORCH: [pause, 0.05, 2.5]}


@pytest.mark.parametrize("version", [INSTALLED, *EACH])
def test_every_rendezvous_of_ft_launcher(version: str) -> None:
    found = pauses("ft_launcher", 2, version)
    assert LEGACY in found or BARRIER in found
    assert set(map(tuple, found.values())) == {(0.1, 0.05, 2.5)}


def test_a_torch_that_has_changed_inside_still_launches() -> None:
    command = [sys.executable, "-W", "ignore", "-c", OTHER_TORCH]
    done = subprocess.run(command, env=clean_env({}), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_another_launcher_is_left_alone() -> None:
    assert pauses("accelerate", 1) == {}
