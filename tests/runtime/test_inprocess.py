"""Faults under in-process restart: on each rank one process, which lives on through them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nemo_resiliency_plugins.contract import Reason
from nemo_resiliency_plugins.runtime.checkpoint.store import CheckpointStore
from tests import lives
from tests.harness import wait_for
from tests.lives import Fault, Options
from tests.ranks import Group

RANK_0, RANK_1 = 0, 1
SPARE = {"active_world_size": 2}


def in_a_row(*steps: int, kind: str = "exception") -> tuple[Fault, ...]:
    return tuple(Fault(kind, 1, step, life) for life, step in enumerate(steps))


def ended(root: Path, world_size: int, options: Options, **given: Any) -> tuple[Group, list[int]]:
    """The ranks of a job of which not all end well, and their exit codes."""
    with lives.started(root, world_size, options, **given) as group:
        return group, group.codes(90.0)


def job(world_size: int, *faults: Fault, **options: Any) -> Callable[[Path], tuple[Group, list[int]]]:
    return partial(ended, world_size=world_size, options=Options(faults=faults, **options))


def held(root: Path) -> tuple[Group, list[int]]:
    """The first save after a fault waits; the pointer is looked at meanwhile, and again at the end."""
    options = Options(faults=HELD, every=2, checkpoint={"async_save": True}, write_s=1.0)
    with lives.started(root, 2, options) as group:
        wait_for((root / "held").exists)
        (root / "seen").write_text(f"{group.store.pointer()} {group.store.committed()}")
        (root / "release").touch()
        return group, group.codes(90.0)


HELD = (Fault("exception", 1, 5, 0), Fault("hold", 0, 5, 1))
JOBS = {
    "mixed": job(
        5,
        *[Fault("exception", 3, 4, 0), Fault("hang", 2, 5, 1), Fault("kill", 1, 7, 2)],
        config={"active_world_size": 4},
    ),
    "undisturbed": job(4),
    "blocked": job(3, Fault("blocked", 1, 5), config=SPARE),
    "locked": job(3, Fault("locked", 1, 5), config=SPARE),
    "head": job(3, Fault("kill", 0, 5), config=SPARE),
    "saving": job(3, Fault("kill_saving", 1, 5), config=SPARE),
    "limit": job(2, *in_a_row(4, 5, 6), every=1, config={"max_iterations": 3}),
    "faults": job(2, *in_a_row(4, 5, 6), every=1, config={"max_rank_faults": 1}),
    "memory": job(2, Fault("memory", 1, 5, None)),
    "too_few": job(2, Fault("kill", 1, 5)),
    "exit": job(2, exit_at_end=True),
    "exit17": job(2, Fault("exit17", 1, 5)),
    "flat": job(2, *in_a_row(*range(1, 11)), every=1, steps=12, megabytes=200),
    "writing": job(2, Fault("exception", 1, 5), every=2, checkpoint={"async_save": True}, write_s=1.0),
    "held": held,
    "deaf": job(2, Fault("exception", 1, 5), every=2, checkpoint={"async_save": True}, deaf=4),
    "noticed": job(3, Fault("exception", 1, 4, 0), Fault("term", 1, 6, 1), preemption=True, config=SPARE, steps=500),
}


def outcome(jobs: Any, name: str) -> tuple[Group, list[int]]:
    group, codes = jobs[name].result()
    return group, codes


def resumed(group: Group, rank: int) -> list[int]:
    return [note.step for note in group.notes(rank) if note.what == "resumed"]


def lives_of(group: Group, rank: int) -> list[list[str]]:
    """Process, port and resident MB of each life of an active rank."""
    return [note.text.split(":") for note in group.notes(rank) if note.what == "life"]


def test_an_exception_a_hang_and_a_kill_cost_no_bit_of_the_result(jobs: Any) -> None:
    mixed, codes = outcome(jobs, "mixed")
    undisturbed, _ = outcome(jobs, "undisturbed")
    assert codes == [0, -9, 0, 0, 0], mixed.log[-4000:]
    expected = set(lives.results(undisturbed).values())
    assert len(expected) == 1
    assert set(lives.results(mixed).values()) == expected
    assert resumed(mixed, 0) == [0, 3, 3, 6]


def test_a_life_that_ends_well_leaves_the_finished_verdict(jobs: Any) -> None:
    for name in ("mixed", "undisturbed"):
        verdict = outcome(jobs, name)[0].verdict
        assert verdict is not None
        assert (verdict.reason, verdict.step) == (Reason.FINISHED, 10)


def test_processes_live_on_and_each_life_has_a_port_of_its_own(jobs: Any) -> None:
    mixed, _ = outcome(jobs, "mixed")
    processes, ports, _ = zip(*lives_of(mixed, 0), strict=True)
    assert len(set(processes)) == 1
    assert len(set(ports)) == 4
    assert [life[1] for life in lives_of(mixed, 2)] == list(ports)


def test_the_spare_takes_the_place_of_the_killed_rank(jobs: Any) -> None:
    mixed, _ = outcome(jobs, "mixed")
    processes = [process for process, _, _ in lives_of(mixed, 1)]
    assert len(set(processes[:3])) == 1
    assert processes[3] != processes[2]
    assert set(lives.results(mixed)) == {0, 2, 3, 4}


@pytest.mark.parametrize("name", ["blocked", "locked"])
def test_a_rank_beyond_the_hard_timeout_is_killed_and_replaced(jobs: Any, name: str) -> None:
    group, codes = outcome(jobs, name)
    assert codes[0] == codes[2] == 0, group.log[-4000:]
    assert codes[1] in (-9, -15)
    assert len(lives_of(group, 0)) == 2
    [life_0, life_1] = group.events("life_began", rank=0)
    assert lives.SHORT["hard_timeout"] <= life_1["time"] - life_0["time"] < 60.0  # type: ignore[operator]


def test_rank_0_may_be_lost_as_well(jobs: Any) -> None:
    group, codes = outcome(jobs, "head")
    assert codes == [-9, 0, 0], group.log[-4000:]
    assert resumed(group, 0) == [0, 3]


def test_a_kill_in_the_middle_of_a_save_leaves_the_checkpoint_before(jobs: Any) -> None:
    group, codes = outcome(jobs, "saving")
    assert codes == [0, -9, 0], group.log[-4000:]
    assert resumed(group, 0) == [0, 3]
    assert "was left by a save that did not finish: replaced" in group.log
    assert CheckpointStore(group.checkpoints, keep=2).committed() == [9, 10]


def test_faults_end_with_the_last_iteration_and_the_error_goes_to_the_launcher(jobs: Any) -> None:
    group, codes = outcome(jobs, "limit")
    assert codes == [1, 1]
    assert resumed(group, 1) == [0, 4, 5]
    assert "ValueError: bad batch at step 6" in group.log
    assert "max_iterations=3 are used up" in group.log


def test_a_rank_with_too_many_faults_leaves(jobs: Any) -> None:
    group, codes = outcome(jobs, "faults")
    assert codes == [1, 1]
    assert resumed(group, 1) == [0, 4]
    assert "rank 1 leaves after more than max_rank_faults=1 faults" in group.log


def test_an_error_that_returns_in_the_same_step_is_left_to_the_launcher(jobs: Any) -> None:
    group, codes = outcome(jobs, "memory")
    assert codes == [1, 1]
    assert len(lives_of(group, 0)) == len(lives_of(group, 1)) == 2
    assert "the same error has returned: MemoryError" in group.log
    assert "MemoryError: out of memory" in group.log


def test_without_a_spare_the_loss_of_a_rank_is_left_to_the_launcher(jobs: Any) -> None:
    group, codes = outcome(jobs, "too_few")
    assert codes == [1, -9]
    assert "1 of 2 ranks were lost" in group.log
    lost, _ = group.events("ranks_lost", rank=0)[0]["time"], None
    assert lost - group.events("checkpoint", rank=0)[-1]["time"] < 20.0


def test_a_function_may_end_with_sys_exit(jobs: Any) -> None:
    group, codes = outcome(jobs, "exit")
    assert codes == [0, 0], group.log[-4000:]
    assert lives.results(group) == {}
    assert len(lives_of(group, 0)) == 1


def test_an_exit_with_a_code_is_no_fault_to_restart_after(jobs: Any) -> None:
    group, codes = outcome(jobs, "exit17")
    assert codes == [1, 17]
    assert len(lives_of(group, 0)) == 1
    assert "SystemExit(17) on rank 1" in group.log


def test_memory_stays_flat_over_ten_restarts(jobs: Any) -> None:
    group, codes = outcome(jobs, "flat")
    assert codes == [0, 0], group.log[-4000:]
    for rank in (RANK_0, RANK_1):
        resident = [int(megabytes) for _, _, megabytes in lives_of(group, rank)]
        assert len(resident) == 11
        assert max(resident[2:]) - resident[1] < 100
    assert resumed(group, 1) == [0, *range(1, 11)]


def test_a_notice_after_a_restart_is_heeded_and_the_spare_stays(jobs: Any) -> None:
    group, codes = outcome(jobs, "noticed")
    assert codes == [0, 0, 0], group.log[-4000:]
    assert group.verdict is not None
    assert group.verdict.reason is Reason.PREEMPTED
    assert CheckpointStore(group.checkpoints, keep=2).is_whole(group.verdict.step)


def test_a_save_in_flight_is_finished_before_the_next_life(jobs: Any) -> None:
    group, codes = outcome(jobs, "writing")
    assert codes == [0, 0], group.log[-4000:]
    assert resumed(group, 0) == [0, 4]
    [life_1] = [event["time"] for event in group.events("life_began", rank=0) if event["iteration"] == 1]
    [saved] = [event["time"] for event in group.events("checkpoint", rank=0) if event["step"] == 4]
    assert saved < life_1


def test_the_save_of_an_earlier_life_commits_none_of_a_later_one(jobs: Any) -> None:
    group, codes = outcome(jobs, "held")
    assert codes == [0, 0], group.log[-4000:]
    assert resumed(group, 0) == [0, 4]
    assert (group.root / "seen").read_text() == "step_000000004 [2, 4]"
    assert group.durable() == [2, 4, 6, 8, 10]
    assert [event["step"] for event in group.events("checkpoint_scheduled", rank=0)] == [2, 4, 6, 8, 10]


def test_a_writer_that_cannot_be_ended_takes_its_rank_with_it(jobs: Any) -> None:
    group, codes = outcome(jobs, "deaf")
    assert codes == [1, 1]
    assert "UncleanError: still running 3 s after the fault: writer of the checkpoint of step 4" in group.log
    assert len(lives_of(group, 0)) == 1
    assert CheckpointStore(group.checkpoints, keep=2).committed() == [2]


@pytest.mark.slow
def test_a_rank_that_ends_its_function_early_makes_all_start_again(tmp_path: Path) -> None:
    group = lives.run(tmp_path, 2, Options(faults=(Fault("exit", 1, 5),)))
    assert resumed(group, 0) == [0, 3]
    assert len(set(lives.results(group).values())) == 1


@pytest.mark.slow
def test_an_early_end_that_returns_is_left_to_the_launcher(tmp_path: Path) -> None:
    group, codes = ended(tmp_path, 2, Options(faults=(Fault("exit", 1, 5, None),)))
    assert codes[0] == 1
    assert "the same error has returned" in group.log
