"""In-process restart under each version of NVRx, with ranks that each start by themselves, as srun starts them."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_resiliency_plugins.contract import variable
from nemo_resiliency_plugins.runtime.rendezvous import free_port
from tests.harness import BIN, LAUNCH, SCRIPTS, Job, ended_afterwards, spawn
from tests.lives import SHORT
from tests.versions.conftest import EACH, version_env

RANKS, ACTIVE = 3, 2


def start(root: Path, version: str, faults: str) -> list[Job]:
    root.mkdir()
    fields = {**SHORT, "active_world_size": ACTIVE}
    common = {variable("inprocess", name): str(value).lower() for name, value in fields.items()}
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(RANKS)}
    common |= {variable("fault_tolerance", "fault_script"): faults, "TORCH_CPP_LOG_LEVEL": "error"}
    arguments = ["--steps", "12", "--every", "4"]
    command = [str(BIN / "python"), *LAUNCH, str(SCRIPTS / "inprocess_trainer.py"), *arguments]
    # With LOCAL_RANK set and without NVML, NVRx 0.5 and later find every rank unhealthy.
    places = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(RANKS)]
    return [spawn(root, command, {**common, **place, **version_env(version)}) for place in places]


@pytest.mark.parametrize("version", EACH)
def test_an_exception_and_a_kill_cost_no_bit_of_the_result(version: str, tmp_path: Path) -> None:
    ranks = start(tmp_path / "job", version, "exception@0:6,kill@1:9")
    undisturbed = start(tmp_path / "undisturbed", version, "")
    with ended_afterwards(*ranks, *undisturbed):
        codes = [rank.wait(120.0) for rank in (*ranks, *undisturbed)]
    assert codes == [0, -9, 0, 0, 0, 0], ranks[0].log[-6000:]
    assert ranks[0].result() == undisturbed[0].result()
    assert [event["step"] for event in ranks[0].events("resumed", rank=0)] == [None, 4, 8]
