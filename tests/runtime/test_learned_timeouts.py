from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from random import Random

import pytest

from nemo_resiliency_plugins.runtime import timeouts
from nemo_resiliency_plugins.runtime.timeouts import Seen
from tests.harness import ENABLED, Job, clean_env, run, wait_for
from tests.runtime.conftest import Jobs

LEARNING = {
    **ENABLED,
    "NRP_FAULT_TOLERANCE__CALC_FT_TIMEOUTS": "true",
    "NRP_FAULT_TOLERANCE__TIMEOUT_FLOOR_S": "1.5",
}
LEARNED = "learned section timeouts"
SECTIONS = {"setup", "step", "checkpointing", "out_of_section"}
SEEN = {"step": {"samples": 20, "longest_s": 1.0, "doublings": 0}}


def state(**changes: object) -> str:
    return json.dumps({"format": 1, "world_size": 1, "seen": SEEN, "limits_s": {"step": 5.0}, **changes})


def seen(**changes: object) -> dict[str, object]:
    return {"step": {**SEEN["step"], **changes}}


BAD = {
    "binary": "\0\1",
    "deep": "[" * 100_000,
    "empty": "",
    "endless": state(seen=seen(doublings=5000)),
    "half": state()[:40],
    "huge": state(seen=seen(longest_s=10**400)),
    "infinite": state(limits_s={"step": 1e999}),
    "nan": state(seen=seen(longest_s=float("nan"))),
    "negative": state(seen=seen(longest_s=-1.0)),
    "no-object": "[1]",
    "unknown-section": state(limits_s={"lunch": 3.0}),
    "world-size": state(world_size=64),
    "zero": state(limits_s={"step": 0}),
}

WRITER = """
import sys
from pathlib import Path
from nemo_resiliency_plugins.runtime import timeouts
from nemo_resiliency_plugins.runtime.timeouts import Seen
path, turn = Path(sys.argv[1]), 0
while True:
    turn += 1
    timeouts.save(path, world_size=1, seen={"step": Seen(turn, turn * 2.0)}, limits={"step": 5.0})
"""


def start_from_bad_states(root: Path) -> Job:
    for name, text in BAD.items():
        (root / "states" / name).mkdir(parents=True)
        (root / "states" / name / timeouts.FILE_NAME).write_text(text)
    (root / "states" / "unreadable" / timeouts.FILE_NAME).mkdir(parents=True)
    return run(root, "bad_states.py", env=LEARNING)


HANGING = ("--steps", "60", "--step-s", "0.02", "--every", "10", "--stop-after", "35")
JOBS = {
    "learner": partial(run, script="loop.py", arguments=HANGING, restarts=1, env=LEARNING),
    "bad": start_from_bad_states,
}


@pytest.fixture
def learner(jobs: Jobs) -> Job:
    """Learns from 30 steps and hangs, restarts and completes."""
    return jobs["learner"].result()


@pytest.fixture
def bad_starts(jobs: Jobs) -> Job:
    return jobs["bad"].result()


def killed_while_saving(path: Path, delay_s: float) -> None:
    path.unlink(missing_ok=True)
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], env=clean_env({}))
    try:
        wait_for(path.exists, what="a first save")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(delay_s)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()


def test_short_steps_tighten_the_limit_down_to_the_floor(learner: Job) -> None:
    assert learner.limits("section timeouts")[0]["step"] == 60.0
    assert learner.limits(LEARNED)[-1]["step"] == 1.5


def test_no_learned_limit_is_above_the_configured_one(learner: Job) -> None:
    configured = learner.limits("section timeouts")[0]
    learned = [*learner.limits(LEARNED, 0), *learner.limits(LEARNED, 1)]
    assert all(limits[name] <= configured[name] for limits in learned for name in limits)  # type: ignore[operator]


def test_a_hang_is_killed_by_the_learned_limit(learner: Job) -> None:
    assert [(event["cycle"], event["hung"]) for event in learner.events("last_life")] == [(1, "step")]


def test_after_a_hang_kill_the_learned_limit_is_doubled(learner: Job) -> None:
    assert learner.limits(LEARNED, 1)[0]["step"] == 3.0


def test_a_restart_still_knows_the_configured_limits(learner: Job) -> None:
    assert learner.limits("section timeouts", 1)[0]["step"] == 60.0


def test_a_format_of_the_users_own_is_loaded_after_the_restart(learner: Job) -> None:
    assert learner.said() == [(1, "loaded 30"), (1, "done")]


def test_the_next_run_begins_with_what_was_learned(learner: Job, tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / timeouts.FILE_NAME).write_bytes((learner.checkpoints / timeouts.FILE_NAME).read_bytes())
    job = run(tmp_path, "loop.py", ("--steps", "2", "--every", "10"), env=LEARNING)
    assert job.limits(LEARNED)[0]["step"] == 3.0


@pytest.mark.parametrize("name", [*BAD, "unreadable"])
def test_a_bad_state_is_a_warning_that_names_it_and_no_more(bad_starts: Job, name: str) -> None:
    path = bad_starts.root / "states" / name / timeouts.FILE_NAME
    warnings = [line for line in bad_starts.log.splitlines() if f"{path} is not used" in line]
    assert len(warnings) == 1
    assert "the configured timeouts hold" in warnings[0]
    assert (0, f"done {name}") in bad_starts.said()


def test_every_session_of_a_process_begins_with_the_configured_timeouts(bad_starts: Job) -> None:
    everything = [*bad_starts.limits("section timeouts"), *bad_starts.limits(LEARNED)]
    assert {limits["step"] for limits in everything} == {60.0}


@pytest.mark.parametrize("kills", [12, pytest.param(150, marks=pytest.mark.slow)])
def test_a_save_cut_by_sigkill_leaves_the_old_state_or_the_new(tmp_path: Path, kills: int) -> None:
    path, draw = tmp_path / timeouts.FILE_NAME, Random(1)
    for _ in range(kills):
        killed_while_saving(path, 0.01 + draw.random() * 0.05)
        known = timeouts.load(path, world_size=1, sections=SECTIONS)["step"]
        assert known == Seen(known.samples, known.samples * 2.0)
