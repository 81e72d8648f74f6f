"""Processes that wait to be a rank, without a launcher: which of them is taken, and what a script finds in it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from nemo_resiliency_plugins.contract import write_atomically
from nemo_resiliency_plugins.runtime.log import LOGGER_NAME
from nemo_resiliency_plugins.runtime.prestart import imports, pool, waiting
from tests.harness import LAUNCH, clean_env, wait_for

SLOW = """
from pathlib import Path
import time
while not Path("{go}").exists():
    time.sleep(0.01)
"""
PRINTS = "import json, os; print(json.dumps([os.environ['BIG'], os.environ['ODD'], os.listdir('/proc/self/fd')]))"
READS_ONCE = """
import os
from noted import inner
SETTING, LEAD = os.environ.get("SETTING"), os.environ.get("LEAD")
"""
SETS_FIRST = """
import json, os, sys
os.environ["SETTING"] = "the script's"
os.environ.pop("LEAD", None)
sys.path.insert(0, "{packages}")
import noted
from nemo_resiliency_plugins.runtime.prestart import imports
os.environ["SETTING"] = "another"
imports.tell()
print(json.dumps([noted.SETTING, noted.LEAD, noted.__file__]))
"""
HAS_LOADED = """
import json, os
import noted
print(json.dumps([noted.POOL, os.environ.get("TORCH_WARM_POOL")]))
"""


class Ranks:
    """A pool, and the one rank that is taken from it."""

    def __init__(self, root: Path) -> None:
        self.root, self.output = root, root / "output"
        self.pool = pool.Pool(root)
        self.script, self.interpreter = root / "script.py", sys.executable
        self.env = clean_env(
            {
                "LOCAL_RANK": "0",
                "TORCHELASTIC_RESTART_COUNT": "0",
                "TORCHELASTIC_MAX_RESTARTS": "3",
                imports.ENV_ROOM: str(root),
                imports.ENV_IMPORTS: "slow,noted",
                "PYTHONPATH": os.pathsep.join(filter(None, [str(root / "site"), os.environ.get("PYTHONPATH")])),
            }
        )

    @property
    def command(self) -> list[str]:
        return [self.interpreter, "-u", *LAUNCH, str(self.script)]

    def write(self, place: str, text: str) -> None:
        path = self.root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def rank(self) -> subprocess.Popen[bytes] | None:
        with self.output.open("w") as file:
            return self.pool.rank(self.command, self.env, [file.fileno()] * 2)

    def ordinary(self) -> Any:
        """What a rank prints that was started as usual."""
        done = subprocess.run(self.command, env=self.env, stdout=subprocess.PIPE, check=True, timeout=30)
        return json.loads(done.stdout)

    def tell(self, *modules: str) -> None:
        write_atomically(imports.told_path(self.root, "0"), json.dumps({"modules": modules, "surroundings": {}}))

    def waiting(self, name: str) -> psutil.Process:
        """Once there is one that shows ``name``."""

        def found() -> psutil.Process | None:
            children = [each for each in psutil.Process().children() if each.name() == name]
            return next((each for each in children if each.environ().get(imports.ENV_ROOM) == str(self.root)), None)

        return wait_for(found, what=f"a process named {name}")

    def printed(self, process: subprocess.Popen[bytes] | None) -> Any:
        assert process is not None, "no process that waited was taken"
        assert process.wait(30) == 0, self.output.read_text()
        return json.loads(self.output.read_text())


@pytest.fixture
def ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ranks]:
    """Whose launcher is shielded, and whose rank has started once."""
    monkeypatch.setattr(pool, "DELAY_S", 0.0)
    monkeypatch.setattr(pool, "LOOK_S", 0.05)
    with ExitStack() as stack:
        stack.callback(signal.pthread_sigmask, signal.SIG_SETMASK, signal.pthread_sigmask(signal.SIG_BLOCK, []))
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        ranks = Ranks(tmp_path)
        thread = threading.Thread(target=ranks.pool.keep_full)
        thread.start()
        stack.callback(thread.join)
        stack.callback(ranks.pool.close)
        assert ranks.rank() is None
        yield ranks


def test_a_process_that_still_loads_is_not_taken(ranks: Ranks, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", LOGGER_NAME)
    ranks.write("site/slow.py", SLOW.format(go=ranks.root / "go"))
    ranks.tell("slow")
    process = ranks.waiting(waiting.LOADS)
    assert ranks.rank() is None
    assert not process.is_running()
    assert caplog.messages == ["[FaultTolerance] the process that waited for rank 0 is of no use: it still loads"]


def test_a_process_that_was_stopped_is_not_waited_for(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "HAND_OVER_S", 0.5)
    ranks.tell("json")
    process = ranks.waiting(waiting.NAME)
    process.suspend()
    assert ranks.rank() is None
    assert not process.is_running()


def test_where_no_process_can_be_started_the_next_start_tries_again(
    ranks: Ranks, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", LOGGER_NAME)
    ranks.interpreter = "/nowhere/python"
    assert ranks.rank() is None
    ranks.tell("json")
    wait_for(lambda: caplog.messages, what="a word of it")
    assert caplog.messages[0].startswith("[FaultTolerance] no process can wait for rank 0: ")
    ranks.interpreter = sys.executable
    assert ranks.rank() is None
    ranks.tell("json")
    ranks.waiting(waiting.NAME)
    assert len(caplog.messages) == 1


def test_a_signal_that_came_before_does_not_end_the_rank(ranks: Ranks) -> None:
    ranks.script.write_text("print('{}')")
    ranks.tell("json")
    ranks.waiting(waiting.NAME).send_signal(signal.SIGUSR1)
    assert ranks.printed(ranks.rank()) == {}


def test_variables_of_any_size_and_any_bytes_arrive_and_no_handle_is_left(ranks: Ranks) -> None:
    ranks.script.write_text(PRINTS)
    big, odd = "x" * 100_000, os.fsdecode(b"\xff\xfe")
    ranks.env |= {"BIG": big, "ODD": odd} | {f"MORE_{number}": big for number in range(4)}
    assert ranks.rank() is None
    ranks.tell("json")
    ranks.waiting(waiting.NAME)
    printed = ranks.printed(ranks.rank())
    assert printed[:2] == [big, odd]
    assert printed == ranks.ordinary()


def test_a_package_is_loaded_with_the_variables_and_paths_that_the_script_had_set_by_then(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks.write("elsewhere/noted.py", "SETTING = LEAD = 'another module of this name'")
    ranks.write("packages/noted/__init__.py", READS_ONCE)
    ranks.write("packages/noted/inner.py", "")
    monkeypatch.chdir(ranks.root / "elsewhere")
    ranks.script.write_text(SETS_FIRST.format(packages=ranks.root / "packages"))
    ranks.env["LEAD"] = "the launcher's"
    assert ranks.rank() is None
    expected = ranks.ordinary()
    assert expected == ["the script's", None, str(ranks.root / "packages" / "noted" / "__init__.py")]
    ranks.waiting(waiting.NAME)
    assert ranks.printed(ranks.rank()) == expected


def test_no_compiler_starts_its_processes_where_one_waits(ranks: Ranks) -> None:
    ranks.write("site/noted.py", "import os; POOL = os.environ.get('TORCH_WARM_POOL')")
    ranks.script.write_text(HAS_LOADED)
    ranks.tell("noted")
    ranks.waiting(waiting.NAME)
    assert ranks.printed(ranks.rank()) == ["0", None]
