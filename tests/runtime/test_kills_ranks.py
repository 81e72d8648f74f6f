"""SIGKILL to all ranks at random moments of saves, to either tier: nothing that was called durable is lost."""

from __future__ import annotations

import dataclasses
import random
import shutil
import time
from pathlib import Path

import pytest

from tests.harness import wait_for
from tests.ranks import Group, run, started
from tests.runtime.conftest import BY_MODE, MODES
from tests.training import Options, train

KILLS = 3
NODE_LOSS = 0.5
"""How often a kill takes what one of the nodes has kept."""
TIERS = ("global", "local")
BY_TIER = pytest.mark.parametrize("tier", TIERS)


def options(root: Path, mode: str, tier: str) -> Options:
    """Two nodes of one rank; the tier under test is written every second step."""
    every = {"global": 2, "local": 7}[tier]
    local = {"local": str(root / "local-{node}"), "ranks_per_node": 1} if tier == "local" else {}
    checkpoint = {**MODES[mode], **({"non_persistent_save_interval": 2} if tier == "local" else {})}
    return Options(steps=10**6, every=every, step_s=0.01, write_s=0.02, width=256, checkpoint=checkpoint, **local)


def await_steps(group: Group, steps: int, *, then_s: float) -> None:
    before = len(group.notes(0))
    wait_for(lambda: len(group.notes(0)) > before + steps or not group.processes[0].is_alive())
    end = time.monotonic() + then_s
    wait_for(lambda: time.monotonic() > end)


def cut(group: Group) -> int:
    """How many saves the kill has left unfinished."""
    local = group.root.glob("local-*/*/step_*")
    return len(group.store.leftovers()) + len({path.name for path in local if len(list(path.glob("*.json"))) < 2})


def kill_and_resume(root: Path, seed: int, mode: str, tier: str) -> None:
    """Kill all ranks several times, and see what each next start goes on from."""
    draw = random.Random(seed)
    training = options(root, mode, tier)
    promised = []
    for _ in range(KILLS):
        with started(root, 2, train, training) as group:
            await_steps(group, draw.randrange(4, 9), then_s=draw.random() * 0.1)
            promised.append(max(group.durable(TIERS), default=0))
            group.kill()
        print(f"promised: step {promised[-1]}, cut saves: {cut(group)}")
        if draw.random() < NODE_LOSS:
            shutil.rmtree(root / f"local-{draw.randrange(2)}", ignore_errors=True)
    group = run(root, 2, train, dataclasses.replace(training, steps=0))
    for rank in (0, 1):
        (_, fresh), *later = group.resumed(rank)
        known = {0: fresh, **group.digests(rank)}
        for (step, digest), at_least in zip(later, promised, strict=True):
            assert step >= at_least
            assert digest == known[step]


@BY_TIER
@BY_MODE
def test_a_kill_in_the_middle_of_a_save_costs_nothing_that_was_durable(tmp_path: Path, mode: str, tier: str) -> None:
    seed = random.SystemRandom().randrange(10**6)
    print(f"{seed=}")
    kill_and_resume(tmp_path, seed, mode, tier)


@pytest.mark.slow
@BY_TIER
@BY_MODE
@pytest.mark.parametrize("turn", range(25))
def test_many_kills_cost_nothing_that_was_durable(tmp_path: Path, mode: str, tier: str, turn: int) -> None:
    seed = turn * 1000 + random.SystemRandom().randrange(1000)
    print(f"{seed=}")
    kill_and_resume(tmp_path, seed, mode, tier)
