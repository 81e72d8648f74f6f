"""Runs training scripts under real launchers, and reads what they leave behind."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import yaml

from nemo_resiliency_plugins.compat.nvrx import launcher_variables, monitor_settings
from nemo_resiliency_plugins.contract import Attempt, Verdict, read_events

Value = TypeVar("Value")

BIN = Path(sys.executable).parent
SCRIPTS = Path(__file__).parent / "scripts"
LAUNCH = ["-m", "nemo_resiliency_plugins.runtime.launch", "--"]
ENABLED = {"NRP_FAULT_TOLERANCE__ENABLE_FT_PACKAGE": "true"}
FOREIGN = ("NRP_", "SLURM", "PET_", "TORCHELASTIC", "RANK", "LOCAL_RANK", "WORLD_SIZE", "FT_")
JOB_ID = "test"
POLL_S = 0.05


def wait_for(condition: Callable[[], Value], *, deadline_s: float = 30.0, what: str = "") -> Value:
    """The first true value of ``condition``; an error when the deadline passes without one."""
    end = time.monotonic() + deadline_s
    while not (value := condition()):
        if time.monotonic() > end:
            raise TimeoutError(f"not within {deadline_s} s: {what or condition}")
        time.sleep(POLL_S)
    return value


def clean_env(extra: Mapping[str, str]) -> dict[str, str]:
    """The environment of this process without what a launcher or a job has put there."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **extra}


@dataclasses.dataclass(frozen=True)
class Timeouts:
    """Seconds by section, as a launcher is configured with; heartbeats are off unless given."""

    setup: float | None = 60.0
    step: float | None = 60.0
    checkpointing: float | None = 60.0
    out_of_section: float | None = 60.0
    heartbeats: tuple[float, float] | None = None

    def content(self) -> dict[str, Any]:
        if self.heartbeats is not None:
            names = ("initial_rank_heartbeat_timeout", "rank_heartbeat_timeout")
            stock = dict(zip(names, self.heartbeats, strict=True))
            return {"fault_tolerance": {**stock, "workload_check_interval": 0.25}}
        sections = {"setup": self.setup, "step": self.step, "checkpointing": self.checkpointing}
        return monitor_settings(
            section_timeouts=sections, out_of_section_timeout=self.out_of_section, workload_check_interval=0.25
        )


@dataclasses.dataclass(frozen=True)
class StepLine:
    time: float
    step: int
    cycle: int


@dataclasses.dataclass(frozen=True)
class Traces:
    """What the ranks of a job leave behind: ``root`` is their script's directory, ``nrp`` the runtime's."""

    root: Path
    nrp: Path

    def events(self, *names: str, rank: int | None = None) -> list[dict[str, Any]]:
        found = (event for event in read_events(self.nrp) if not names or event["event"] in names)
        return [event for event in found if rank is None or event["rank"] == rank]

    def steps(self, rank: int = 0) -> list[StepLine]:
        path = self.root / f"steps-{rank}.txt"
        lines = path.read_text().splitlines() if path.exists() else []
        return [StepLine(float(at), int(step), int(cycle)) for at, step, cycle in map(str.split, lines)]

    def said(self, rank: int = 0) -> list[tuple[int, str]]:
        """Cycle and text of what the script has noted down."""
        path = self.root / f"said-{rank}.txt"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(int(cycle), text) for cycle, text in (line.split(" ", 1) for line in lines)]

    def limits(self, kind: str, cycle: int = 0) -> list[dict[str, float | None]]:
        """The limits that rank 0 reported under ``kind``, in order."""
        found = self.events("timeouts", rank=0)
        return [event["limits_s"] for event in found if event["kind"] == kind and event["cycle"] == cycle]

    def cycles(self, rank: int = 0) -> list[int]:
        """The cycles in which this rank ran steps, in order."""
        return sorted({line.cycle for line in self.steps(rank)})

    @property
    def verdict(self) -> Verdict | None:
        return Verdict.read(self.nrp, Attempt(job_id=JOB_ID))

    def result(self, name: str = "result.txt") -> str:
        return (self.root / name).read_text().strip()


@dataclasses.dataclass(frozen=True)
class Job(Traces):
    """A job that was started on this machine."""

    process: subprocess.Popen[bytes]
    started: float = dataclasses.field(default_factory=time.monotonic)

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def log(self) -> str:
        return (self.root / "log.txt").read_text(errors="replace")

    def wait(self, deadline_s: float = 120.0) -> int:
        try:
            return self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self.end()
            raise AssertionError(f"still running after {deadline_s} s:\n{self.log[-4000:]}") from None

    def succeed(self, deadline_s: float = 120.0) -> Job:
        code = self.wait(deadline_s)
        assert code == 0, f"exit code {code}:\n{self.log[-6000:]}"
        return self

    def end(self) -> None:
        """Stop the job with all its ranks and monitors, the way an operator would."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.process.poll() is None:
                self.process.send_signal(number)
                _reap(self.process, 15.0)


def program(name: str) -> str:
    """The path of a command of this environment, or else of the PATH."""
    own = BIN / name
    found = str(own) if own.exists() else shutil.which(name)
    assert found is not None, f"there is no {name}"
    return found


def _reap(process: subprocess.Popen[bytes], deadline_s: float) -> None:
    try:
        process.wait(deadline_s)
    except subprocess.TimeoutExpired:
        return


def ft_launcher(ranks: int, restarts: int) -> list[str]:
    # 0.4.1 turns the NIC monitor on whatever its configuration file says.
    return [*_launcher("ft_launcher", ranks, restarts), "--ft-enable-nic-monitor=false"]


def torchrun(ranks: int, restarts: int) -> list[str]:
    return _launcher("torchrun", ranks, restarts)


def _launcher(name: str, ranks: int, restarts: int) -> list[str]:
    rendezvous = ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--nnodes=1"]
    return [program(name), *rendezvous, f"--nproc-per-node={ranks}", f"--max-restarts={restarts}"]


def start(
    root: Path,
    script: str,
    *arguments: str,
    ranks: int = 1,
    restarts: int = 0,
    timeouts: Timeouts = Timeouts(),
    env: Mapping[str, str] = ENABLED,
    launcher: Callable[[int, int], list[str]] = ft_launcher,
    wrapped: bool = True,
) -> Job:
    """Start ``tests/scripts/<script>`` as a job in ``root``; ``wrapped``: through the runtime's stub of a rank."""
    root.mkdir(parents=True, exist_ok=True)
    settings = root / "monitor.yaml"
    settings.write_text(yaml.safe_dump(timeouts.content()))
    own = {
        **launcher_variables(monitor_interval=0.1, workers_stop_timeout=2, term_timeout=5),
        "PET_FT_CFG_PATH": str(settings),
    }
    command = [*launcher(ranks, restarts), *(LAUNCH if wrapped else []), str(SCRIPTS / script), *arguments]
    return spawn(root, command, {**own, **env})


def start_alone(root: Path, script: str, *arguments: str, env: Mapping[str, str] = ENABLED) -> Job:
    """Run the script as a process that no launcher has started."""
    root.mkdir(parents=True, exist_ok=True)
    return spawn(root, [sys.executable, *LAUNCH, str(SCRIPTS / script), *arguments], env)


def spawn(root: Path, command: list[str], env: Mapping[str, str]) -> Job:
    common = {"NRP_DIR": str(root / "nrp"), "NRP_JOB_ID": JOB_ID, "TEST_ROOT": str(root)}
    with (root / "log.txt").open("ab") as log:
        process = subprocess.Popen(command, env=clean_env({**common, **env}), stdout=log, stderr=log, cwd=root)
    return Job(root, root / "nrp", process)


@contextmanager
def ended_afterwards(*jobs: Job) -> Iterator[None]:
    try:
        yield
    finally:
        for job in jobs:
            job.end()


def run(root: Path, script: str, arguments: Sequence[str] = (), *, deadline_s: float = 120.0, **options: Any) -> Job:
    """:func:`start`, and wait for success."""
    job = start(root, script, *arguments, **options)
    with ended_afterwards(job):
        return job.succeed(deadline_s)


def python(code: str, *, env: Mapping[str, str] | None = None, deadline_s: float = 60.0) -> str:
    """The output of a fresh interpreter that runs ``code``; an error if it fails."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, env=clean_env(env or {}), capture_output=True, text=True, timeout=deadline_s, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def json_lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]
