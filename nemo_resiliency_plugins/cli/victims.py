"""Which process a rank is, on which machine and of whom; and how a signal gets there."""

from __future__ import annotations

import dataclasses
import os
import platform
import re
import shutil
import signal as signals
import subprocess
from pathlib import Path

import psutil

from nemo_resiliency_plugins.config.rerun import DISABLED
from nemo_resiliency_plugins.contract import ENV_DIR
from nemo_resiliency_plugins.errors import ConfigError, NotWorkingError, ResiliencyError, UnsupportedError
from nemo_resiliency_plugins.report.reading import event_files, events_of, read_object
from nemo_resiliency_plugins.report.words import counted

COMMAND_S = 60.0


@dataclasses.dataclass(frozen=True)
class Victim:
    """The present process of a rank. ``job_id`` is Slurm's; None where Slurm did not start the job."""

    rank: int
    pid: int
    node: str
    attempt: str
    cycle: int
    job_id: str | None
    directory: Path

    def __str__(self) -> str:
        return f"rank {self.rank} (process {self.pid} on {self.node})"


def find(job: Path, rank: int) -> Victim:
    """The process of ``rank`` in the job with this ``nrp`` directory, checked to be alive and the user's own.

    Raises:
        ConfigError: the job has no such rank.
        NotWorkingError: the rank does not run, or not yet.
        UnsupportedError: the job is somebody else's.
    """
    files = [file for file in event_files(job) if file.rank == rank]
    started = [event for file in files[-1:] for event in events_of(file) if "pid" in event and "node" in event]
    if not started:
        raise _not_there(rank, job)
    last, job_id = started[-1], files[-1].attempt.rsplit("-", 2)[0]
    of_slurm = job_id if re.fullmatch(r"\d+", job_id) and shutil.which("scontrol") else None
    victim = Victim(rank, last["pid"], last["node"], files[-1].attempt, last["cycle"], of_slurm, job)
    if of_slurm is not None:
        _check_job(of_slurm, victim)
    else:
        _check_process(victim)
    return victim


def signal(victim: Victim, name: str) -> None:
    """Send a signal to the rank's process, through Slurm where it started the job.

    Raises:
        NotWorkingError: the process cannot be reached.
    """
    if victim.job_id is None:
        _check_process(victim)
        os.kill(victim.pid, signals.Signals[f"SIG{name}"])
        return
    # Only a process of this job gets the signal: its number may be another's by now.
    mark = f"'^SLURM_JOB_ID={victim.job_id}$'"
    guarded = f"grep -qz {mark} /proc/{victim.pid}/environ && kill -{name} {victim.pid}"
    _run([*_beside(victim), "sh", "-c", guarded], f"{victim} cannot be signalled")


def announce_end(victim: Victim) -> None:
    """What Slurm does at a preemption: the signal that the job takes for a notice, to all its steps.

    Raises:
        NotWorkingError: Slurm has not taken it, or the process is gone.
    """
    name = _announcement(victim)
    if victim.job_id is None:
        signal(victim, name)
    else:
        _run(["scancel", f"--signal={name}", victim.job_id], f"job {victim.job_id} cannot be signalled")


def heeds_announcement(victim: Victim) -> bool:
    """Whether a handler is there for that signal, of the session, the trainer or the script; else the rank dies of it.

    The kernel knows of handlers whoever has asked for them, also where the script's own config has. False where it
    cannot be asked.
    """
    number = signals.Signals[f"SIG{_announcement(victim)}"]
    try:
        status = _of_process(victim, "status")
    except (OSError, NotWorkingError):
        return False
    masks = re.findall(r"^Sig(?:Cgt|Ign):\s*([0-9a-f]+)$", status, flags=re.MULTILINE)
    return any(int(mask, 16) >> (number - 1) & 1 for mask in masks)


def ignores_results(victim: Victim) -> bool:
    """Whether the rank's session has told that nobody looks at the results of its steps."""
    files = (
        file for file in event_files(victim.directory) if (file.rank, file.attempt) == (victim.rank, victim.attempt)
    )
    told = [event for file in files for event in events_of(file)]
    asked = [event.get("results") for event in told if event["event"] == "session_started"]
    is_idle = any(event["event"] == "not_working" and event.get("feature") == "result validation" for event in told)
    return is_idle or asked[-1:] == [DISABLED]


def _announcement(victim: Victim) -> str:
    told = read_object(victim.directory / "config.json").get("preemption", {})
    return str(told.get("exit_signal", "SIGTERM")).removeprefix("SIG")


def _of_process(victim: Victim, name: str) -> str:
    """What the kernel tells under ``name``. Raises OSError or NotWorkingError where it cannot be asked."""
    path = Path(f"/proc/{victim.pid}/{name}")
    if victim.job_id is None:
        return path.read_text(errors="replace")  # variables may hold any bytes
    return _run([*_beside(victim), "cat", str(path)], f"{victim} cannot be looked at")


def _beside(victim: Victim) -> list[str]:
    """How a command is started on the rank's node, beside the step that runs there."""
    step = ["srun", f"--jobid={victim.job_id}", "--overlap", f"--nodelist={victim.node}", "--nodes=1", "--ntasks=1"]
    return [*step, "--immediate=30"]


def _check_process(victim: Victim) -> None:
    if victim.node != platform.node() and victim.job_id is None:
        raise NotWorkingError(f"{victim} is on another machine, and no Slurm is here to reach it: go to {victim.node}")
    try:
        process = psutil.Process(victim.pid)
        owner, variables = process.uids().real, process.environ()
    except psutil.AccessDenied as error:
        raise _not_yours(victim) from error
    except psutil.NoSuchProcess as error:
        raise NotWorkingError(f"{victim} does not run any more") from error
    if owner != os.getuid():
        raise _not_yours(victim)
    given = variables.get(ENV_DIR)
    if given is None or Path(given).resolve() != victim.directory.resolve():
        raise NotWorkingError(f"{victim} does not run any more: that process belongs to something else")


def _check_job(job_id: str, victim: Victim) -> None:
    told = _run(["scontrol", "show", "job", "--oneliner", job_id], f"Slurm does not know job {job_id}")
    owner = re.search(r" UserId=[^(]*\((\d+)\)", told)
    if owner is None or int(owner[1]) != os.getuid():
        raise _not_yours(victim)
    if " JobState=RUNNING " not in told:
        raise NotWorkingError(f"job {job_id} does not run")


def _not_there(rank: int, job: Path) -> ResiliencyError:
    ranks = {file.rank for file in event_files(job) if file.rank is not None}
    if not ranks or rank in ranks:  # a file is there before its process has told anything
        return NotWorkingError(f"rank {rank} has not started yet in {job}")
    there = f"{counted(len(ranks), 'rank')}, {min(ranks)} to {max(ranks)}"
    return ConfigError("--rank", rank, f"there is no such rank in {job}", f"It has {there}.")


def _not_yours(victim: Victim) -> UnsupportedError:
    remedy = "Inject faults into jobs of your own."
    return UnsupportedError("DIR", str(victim.directory), f"{victim} belongs to another user", remedy)


def _run(command: list[str], problem: str) -> str:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMMAND_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotWorkingError(f"{problem}: {error}") from error
    if done.returncode != 0:
        raise NotWorkingError(f"{problem}: {(done.stderr or done.stdout).strip() or done.returncode}")
    return done.stdout
