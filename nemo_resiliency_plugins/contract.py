"""What the submit side and the job side agree on: variables, file names, exit codes and their encoding.

Both sides import this module, so it uses the standard library alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from nemo_resiliency_plugins.errors import ConfigError

ENV_DIR = "NRP_DIR"
ENV_JOB_ID = "NRP_JOB_ID"
ENV_ROUND = "NRP_ROUND"
ENV_CONFIG = "NRP_CONFIG"
ENV_STRICT = "NRP_STRICT"
ENV_LOG_LEVEL = "NRP_LOG_LEVEL"
ENV_NODE_RUN = "NRP_NODE_RUN"
"""Marks every process that a node script has started, whatever became of its parents."""

ENV_NOTICE = "NRP_NOTICE"
"""How a rank tells a preemption notice from a launcher that stops its workers, set by the node script.

``any``: no launcher is between, every signal is a notice. ``launcher``: the parent of the rank is a launcher that
has the signals blocked; a notice is what it has pending too. Unset: no node script, every signal is a notice.
"""
NOTICE_ANY, NOTICE_LAUNCHER = "any", "launcher"

LAUNCH_MODULE = "nemo_resiliency_plugins.runtime.launch"
ENCODED_ARGUMENTS = "--percent-encoded"

CONFIG_FILE, MONITOR_FILE, RUNTIME_FILE = "config.json", "ft.yaml", "runtime.zip"
"""What the launcher writes into the job's ``nrp`` directory."""
NODE_SECTION = "node"
"""Where the configuration file tells the node script what to start."""


class Kind(str, enum.Enum):
    """What starts the ranks on a node; under RANK each task of the step is one."""

    FT = "ft"
    TORCHRUN = "torchrun"
    RANK = "rank"


SETUP, STEP, CHECKPOINTING = "setup", "step", "checkpointing"
"""The section names that every NVRx version watches properly."""
OUT_OF_SECTION = "out_of_section"
"""Stands for the time in which no section is open; never sent to NVRx as a section."""


class ExitCode(enum.IntEnum):
    """Exit codes with a meaning of their own."""

    OK = 0
    FAILED = 1
    USAGE = 2
    RERUN_ELSEWHERE = 16
    VALIDATION_FAILED = 17
    NO_RESTART = 93


class Reason(str, enum.Enum):
    """Why all ranks ended together."""

    FINISHED = "finished"
    PREEMPTED = "preempted"
    PREEMPTED_UNSAVED = "preempted_unsaved"
    STRAGGLER = "straggler"
    RERUN_ELSEWHERE = "rerun_elsewhere"
    VALIDATION_FAILED = "validation_failed"


@dataclasses.dataclass(frozen=True)
class Attempt:
    """Which start of the job this is. An in-job restart counts up ``cycle`` and stays in its attempt."""

    job_id: str = "local"
    restart_count: int = 0
    round: int = 0
    cycle: int = 0

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Attempt:
        return cls(
            job_id=env.get(ENV_JOB_ID) or env.get("SLURM_JOB_ID") or "local",
            restart_count=int(env.get("SLURM_RESTART_COUNT", "0")),
            round=int(env.get(ENV_ROUND, "0")),
            cycle=int(env.get("TORCHELASTIC_RESTART_COUNT", "0")),
        )

    @property
    def name(self) -> str:
        return f"{self.job_id}-{self.restart_count}-{self.round}"

    @property
    def is_repeated(self) -> bool:
        """Whether the job, or its ranks, have been started before."""
        return bool(self.restart_count or self.round or self.cycle)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """A deliberate end that all ranks agreed on."""

    reason: Reason
    code: int
    step: int
    rank: int
    node: str

    def write(self, directory: Path, attempt: Attempt) -> Path:
        path = verdict_path(directory, attempt)
        write_atomically(path, json.dumps(dataclasses.asdict(self)) + "\n")
        return path

    @classmethod
    def read(cls, directory: Path, attempt: Attempt) -> Verdict | None:
        path = verdict_path(directory, attempt)
        if not path.exists():
            return None
        values = json.loads(path.read_text())
        return cls(**{**values, "reason": Reason(values["reason"])})


def verdict_path(directory: Path, attempt: Attempt) -> Path:
    return directory / f"verdict-{attempt.name}.json"


def started_path(directory: Path, attempt: Attempt) -> Path:
    """Exists when a session has started in this attempt."""
    return directory / f"started-{attempt.name}"


def unstartable_path(directory: Path, attempt: Attempt) -> Path:
    """Exists when something was missing that a retry cannot bring; holds what."""
    return directory / f"unstartable-{attempt.name}"


def notice_path(directory: Path, attempt: Attempt) -> Path:
    """Exists when Slurm has announced the end of this attempt: written by the first node script that is signalled."""
    return directory / f"notice-{attempt.name}"


def broken_path(directory: Path, attempt: Attempt) -> Path:
    """Exists when a node's part has failed before any signal came to it.

    Then srun (22.05) ends the step with SIGTERM, and what the other nodes take for a notice is none.
    """
    return directory / f"broken-{attempt.name}"


def failure_path(directory: Path, attempt: Attempt, meeting: str) -> Path:
    """Holds the first failure of a cycle; launchers turn every rank's exit code into 1, this keeps it.

    ``meeting`` is what the ranks of one start share: their MASTER_PORT. The cycle is no such thing, since each
    launcher of NVRx 0.4.1 counts its own restarts.
    """
    return directory / f"failure-{attempt.name}-{meeting}.json"


def write_if_first(path: Path, text: str) -> None:
    """Write ``path`` unless another process has written it already."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError), path.open("x") as file:
        file.write(text)


def endpoint_path(directory: Path, attempt: Attempt) -> Path:
    """Holds ``host:port`` of this attempt's rendezvous, published by the head node."""
    return directory / f"endpoint-{attempt.name}"


def progress_path(directory: Path, attempt: Attempt) -> Path:
    """Holds the step of the newest committed checkpoint of this job."""
    return directory / f"progress-{attempt.job_id}"


def nowhere_path(directory: Path, attempt: Attempt) -> Path:
    """Exists when the batch script could not leave a node of this job, so that asking again would be in vain."""
    return directory / f"nowhere-{attempt.job_id}"


def events_path(directory: Path, attempt: Attempt, rank: int) -> Path:
    """One file per attempt and rank: a single writer needs no lock on any file system."""
    return directory / "events" / f"{attempt.name}-rank{rank:05d}.jsonl"


def rank_record_path(directory: Path, rank: int) -> Path:
    return directory / "ranks" / f"rank{rank:05d}.json"


def fired_path(directory: Path, fault: str) -> Path:
    """Marks a scripted fault as injected, so that a restarted rank does not repeat it."""
    return directory / "faults" / f"{fault}.fired"


def write_atomically(path: Path, text: str) -> None:
    """Write so that a reader whom the umask lets, or a crash, finds the old content or the new one, nothing else."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with temporary.open("x") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_directory(path.parent)


def fsync_directory(path: Path) -> None:
    """Make renames and new names in ``path`` survive a power loss."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def variable(plugin: str, field: str) -> str:
    """The variable that overrides one field: ``variable("fault_tolerance", "simulate_fault")``."""
    return f"NRP_{plugin.upper()}__{field.upper()}"


def encode_value(value: Any) -> str:
    """JSON, except that a plain string is written without quotes: ``NRP_X__Y=rank_hung`` reads well."""
    return value if isinstance(value, str) and decode_value(value) == value else json.dumps(value)


def decode_value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def encode_arguments(arguments: list[str]) -> list[str]:
    """Arguments of :data:`LAUNCH_MODULE` that run ``arguments`` unchanged.

    NeMo-Run 0.11.1 shell-quotes the arguments of its launchers and then starts them without a shell on
    LocalExecutor, so quotes would arrive as text; percent signs pass. The leading ``--`` keeps script
    options from being read as abbreviated launcher options (NVRx 0.4.1 and 0.5.0).
    """
    encoded = [quote(argument, safe="@+=:,./-_") for argument in arguments]
    if encoded == arguments and "" not in arguments:
        return ["--", *arguments]
    return [ENCODED_ARGUMENTS, "--", *(argument or "%" for argument in encoded)]


def decode_arguments(arguments: list[str]) -> list[str]:
    """The inverse of :func:`encode_arguments`; plain arguments without its markers pass as they are."""
    encoded = arguments[:1] == [ENCODED_ARGUMENTS]
    rest = arguments[1:] if encoded else list(arguments)
    if rest[:1] == ["--"]:
        rest = rest[1:]
    return ["" if argument == "%" else unquote(argument) for argument in rest] if encoded else rest


def overrides_from_env(plugin: str, env: Mapping[str, str]) -> dict[str, Any]:
    prefix = variable(plugin, "")
    return {
        name[len(prefix) :].lower(): decode_value(text) for name, text in sorted(env.items()) if name.startswith(prefix)
    }


def read_config_file(path: Path) -> dict[str, dict[str, Any]]:
    """Read ``NRP_CONFIG``: an object per plugin, an entry per field.

    Raises:
        ConfigError: the file is missing or is not such an object.
    """
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(ENV_CONFIG, str(path), f"cannot be read: {error}", "Unset it or mend the file.") from error
    if not isinstance(content, dict) or not all(isinstance(fields, dict) for fields in content.values()):
        raise ConfigError(ENV_CONFIG, str(path), "must hold an object per plugin", "Mend the file.")
    return content


def read_events(directory: Path) -> Iterator[dict[str, Any]]:
    """All events below ``directory``, file by file; a line cut by a crash is left out."""
    for path in sorted((directory / "events").glob("*.jsonl")):
        for line in path.read_text().splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                continue
