"""What decides whether a process that waits may become a rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import pytest

from nemo_resiliency_plugins.contract import ENV_NODE_RUN
from nemo_resiliency_plugins.runtime.node import marked
from nemo_resiliency_plugins.runtime.prestart import imports
from nemo_resiliency_plugins.runtime.prestart.pool import Start
from tests.harness import clean_env, wait_for

COMMAND = ("python", "-u", "-m", "launch", "train.py")
ENV = {
    "LOCAL_RANK": "1",
    "RANK": "5",
    "WORLD_SIZE": "8",
    "MASTER_PORT": "1",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_MAX_RESTARTS": "1",
    "OMP_NUM_THREADS": "1",
}
WAITS = """
import sys
from nemo_resiliency_plugins.runtime.prestart.waiting import named
with named("nrp-prestarted"):
    print("waits", flush=True)
    sys.stdin.readline()
print("runs", flush=True)
sys.stdin.readline()
"""


def test_what_a_launcher_changes_at_every_start_is_no_difference() -> None:
    changed = {"MASTER_PORT": "2", "TORCHELASTIC_RESTART_COUNT": "1", "NVRX_CURRENT_CYCLE_INFO": "x"}
    assert Start(COMMAND, ENV).is_like(COMMAND, {**ENV, **changed})


@pytest.mark.parametrize(
    ("command", "env"),
    [
        (COMMAND, {**ENV, "OMP_NUM_THREADS": "2"}),
        (COMMAND, {**ENV, "CUDA_VISIBLE_DEVICES": "1"}),
        (COMMAND, {**ENV, "RANK": "3"}),
        (COMMAND, {name: value for name, value in ENV.items() if name != "OMP_NUM_THREADS"}),
        ((*COMMAND, "--more"), ENV),
    ],
    ids=["changed variable", "new variable", "other rank", "lost variable", "other command"],
)
def test_any_other_change_asks_for_a_new_process(command: tuple[str, ...], env: dict[str, str]) -> None:
    assert not Start(COMMAND, ENV).is_like(command, env)


def test_the_last_start_is_not_repeated() -> None:
    assert Start(COMMAND, ENV).may_be_repeated
    assert not Start(COMMAND, {**ENV, "TORCHELASTIC_RESTART_COUNT": "1"}).may_be_repeated


def test_a_rank_tells_the_modules_of_the_allowed_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(imports.ENV_ROOM, str(tmp_path))
    monkeypatch.setenv(imports.ENV_IMPORTS, "json,email.message")
    monkeypatch.setenv("LOCAL_RANK", "3")
    import email.message

    assert email.message
    imports.tell()
    told = json.loads((tmp_path / "3.json").read_text())["modules"]
    assert "json.decoder" in told and "email.message" in told
    assert not {"os", "email", "__main__"} & set(told)


def test_what_stands_for_a_module_of_others_is_not_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Lazy(ModuleType):
        def __getattribute__(self, name: str) -> NoReturn:
            raise RuntimeError("loading would fail")

    monkeypatch.setitem(sys.modules, "lazy", Lazy("lazy"))
    monkeypatch.setenv(imports.ENV_ROOM, str(tmp_path))
    monkeypatch.setenv(imports.ENV_IMPORTS, "json")
    monkeypatch.setenv("LOCAL_RANK", "3")
    imports.tell()
    assert (tmp_path / "3.json").exists()


def test_what_cannot_be_loaded_is_left_to_the_script(tmp_path: Path) -> None:
    (tmp_path / "3.json").write_text(json.dumps({"modules": ["no.such.module", "wave"], "surroundings": {}}))
    sys.modules.pop("wave", None)
    imports.load({imports.ENV_ROOM: str(tmp_path), "LOCAL_RANK": "3"})
    assert "wave" in sys.modules


def test_a_process_that_waits_is_no_rank_and_not_found_by_the_name_of_the_script(tmp_path: Path) -> None:
    mark = f"test-{os.getpid()}-{time.monotonic_ns()}"
    env = clean_env({ENV_NODE_RUN: mark, "RANK": "0"})
    command = [sys.executable, "-c", WAITS, "train.py"]
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        place = Path(f"/proc/{process.pid}")
        before = wait_for((place / "cmdline").read_bytes)
        assert process.stdout.readline() == "waits\n"
        assert list(marked(mark)) == [process.pid]
        assert not list(marked(mark, ranks_only=True))
        assert b"train.py" not in (place / "cmdline").read_bytes()
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "runs\n"
        assert list(marked(mark, ranks_only=True)) == [process.pid]
        assert (place / "cmdline").read_bytes() == before
        process.stdin.close()
