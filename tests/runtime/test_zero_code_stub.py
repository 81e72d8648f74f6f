"""What the stub does for a script without a session, seen from one process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from nemo_resiliency_plugins.contract import Reason, rank_record_path
from tests.harness import LAUNCH, Job, ended_afterwards, spawn
from tests.runtime.test_launch_stub import HANGING, SESSION, SHORT, printed, run, write

ZERO_CODE = {"NRP_FAULT_TOLERANCE__ZERO_CODE": "true"}
HANDLED = {**ZERO_CODE, "NRP_PREEMPTION__EXIT_SIGNAL_HANDLER": "true"}
WITHOUT_TORCH = """
import os, sys
if os.fork() == 0:
    sys.exit(0)
os.wait()
assert "torch" not in sys.modules
"""
WORKERS = """
import json, multiprocessing, time
child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
child.start()
child.terminate()
child.join(20)
print(json.dumps(child.is_alive()))
"""
TRAINING = """
import json, sys, threading, time
watch = sys.modules["nemo_resiliency_plugins.runtime.zero_code"]._zero_code

def main():
    import torch
    first, second = (torch.optim.SGD([torch.nn.Parameter(torch.ones(1, requires_grad=True))]) for _ in range(2))
    for optimizer in (first, second):
        optimizer.param_groups[0]["params"][0].grad = torch.ones(1)
    for _ in range(3):
        first.step()
        second.step()
    compiled = torch.compile(first.step, backend="eager")
    seen = []
    for _ in range(3):
        watch.has_unseen = False
        compiled()
        seen.append(watch.has_unseen)
    end = time.monotonic() + 20
    while watch.has_unseen and time.monotonic() < end:
        time.sleep(0.05)
    print(json.dumps([seen, watch.has_unseen]))

main()
"""
ENDS = [("import sys; sys.exit(3)", 3), ("1 / 0", 1), ("import os; os._exit(0)", 0)]
NO_STEP = "import torch.optim.optimizer\n"


def train(root: Path, text: str, env: dict[str, str] = ZERO_CODE, code: int = 0) -> Job:
    write(root, "train.py", text)
    job = run(root, "train.py", env=env)
    assert job.process.returncode == code, job.log
    return job


def test_a_good_end_is_a_verdict_and_torch_is_not_loaded_for_it(tmp_path: Path) -> None:
    job = train(tmp_path, WITHOUT_TORCH)
    assert job.verdict is not None
    assert job.verdict.reason is Reason.FINISHED
    assert len(job.events("finished")) == 1
    assert not job.log


@pytest.mark.parametrize(("text", "code"), ENDS)
def test_any_other_end_is_none(tmp_path: Path, text: str, code: int) -> None:
    assert train(tmp_path, text, code=code).verdict is None


def test_a_verdict_needs_all_ranks(tmp_path: Path) -> None:
    for rank, is_last in ((1, False), (0, True)):
        job = train(
            tmp_path, "", {**ZERO_CODE, "RANK": str(rank), "WORLD_SIZE": "2", "TORCHELASTIC_RESTART_COUNT": "1"}
        )
        assert (job.verdict is not None) == is_last


def test_a_session_takes_over_without_a_word(tmp_path: Path) -> None:
    write(tmp_path, "library.py", SESSION)
    job = train(tmp_path, "import library", HANDLED)
    assert job.events("session_started")
    assert len(job.events("finished")) == 1
    assert "zero code" not in job.log


def test_a_worker_that_the_script_ends_is_no_notice(tmp_path: Path) -> None:
    job = train(tmp_path, WORKERS, HANDLED)
    assert printed(job) == [False]
    assert not job.events("preemption_notice", "stopped_by_launcher")


@pytest.mark.slow
def test_steps_of_several_and_of_compiled_optimizers_are_seen(tmp_path: Path) -> None:
    write(tmp_path, "train.py", TRAINING)
    job = spawn(tmp_path, [sys.executable, *LAUNCH, "train.py"], ZERO_CODE)
    with ended_afterwards(job):
        job.succeed(120.0)
    assert "[[true, true, true], false]" in job.log
    assert [event["step"] for event in job.events("first_step")] == [0]
    assert [event["step"] for event in job.events("finished")] == [3]


@pytest.mark.slow
def test_a_script_that_steps_no_optimizer_is_told_so(tmp_path: Path) -> None:
    assert "no optimizer has stepped, so hangs were not watched" in train(tmp_path, NO_STEP).log


def test_the_way_to_the_first_step_is_watched_where_a_start_before_has_come_to_one(tmp_path: Path) -> None:
    env = {**ZERO_CODE, **SHORT}
    train(tmp_path / "first", HANGING.replace("600", "2"), env)
    write(tmp_path, rank_record_path(Path("nrp"), 0).as_posix())
    job = train(tmp_path, HANGING, env, code=-9)
    assert job.events("startup_timeout")


def test_another_program_cannot_be_watched_and_it_is_said(tmp_path: Path) -> None:
    job = run(tmp_path, "--exec", "true", env=ZERO_CODE)
    assert job.process.returncode == 0
    assert "nothing is watched: the rank runs true" in job.log
    strict = run(tmp_path, "--exec", "true", env={**ZERO_CODE, "NRP_STRICT": "true"})
    assert strict.process.returncode == 1
