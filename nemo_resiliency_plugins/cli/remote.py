"""Job directories on another machine: what is small in them is copied here, and only what is new."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from nemo_resiliency_plugins.cli.places import written_to
from nemo_resiliency_plugins.errors import ConfigError, ResiliencyError

WANTED = ("*/", "nrp/events/***", "nrp/ranks/***", "nrp/*.json", "nrp/progress-*")
HEAVY = ("checkpoints/", "code/", "torchelastic/")
"""Directories that are not looked into."""
DEADLINE_S = 120.0


class RemoteError(ResiliencyError):
    """The other machine cannot be reached, or has no such directory."""


def mirror(host: str, directory: str, ssh: str = "ssh") -> Path:
    """A copy of the events, records and verdicts below ``directory`` on ``host``, brought up to date.

    Args:
        host: as ssh takes it, such as ``user@login``.
        ssh: the command, with its options, that reaches it.

    Raises:
        ConfigError: rsync is missing here, or there is no place for the copy.
        RemoteError: the copy has failed; the message holds what rsync said.
    """
    if shutil.which("rsync") is None:
        raise ConfigError("--host", host, "needs rsync on this machine", "Install rsync, which NeMo-Run needs as well.")
    target = _cache() / hashlib.sha256(f"{host}:{directory}".encode()).hexdigest()[:16]
    with written_to("XDG_CACHE_HOME", target, "Set it to a directory in which you may write."):
        target.mkdir(parents=True, exist_ok=True)
    source = directory.rstrip("/")
    if Path(source).name == "nrp":
        source = str(Path(source).parent)
    filters = [*(f"--exclude={name}" for name in HEAVY), *(f"--include={name}" for name in WANTED), "--exclude=*"]
    command = ["rsync", "--archive", "--prune-empty-dirs", "--delete", "-e", ssh, *filters]
    try:
        done = subprocess.run(
            [*command, f"{host}:{source}/", f"{target}/"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RemoteError(f"{host} has not sent {directory} within {DEADLINE_S:g} s") from error
    if done.returncode not in (0, 24):  # 24: a file went while it was being read
        raise RemoteError(f"{directory} cannot be read on {host}: {done.stderr.strip() or done.returncode}")
    return target


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "nemo-resiliency"
