"""The log of the runtime: lines that begin with ``[FaultTolerance]``, on rank 0 unless a rank has news of its own."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping

from nemo_resiliency_plugins.contract import ENV_LOG_LEVEL

LOGGER_NAME = "nemo_resiliency_plugins"
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def logger() -> logging.Logger:
    """The package's logger; it gets a handler of its own only where the user has configured none."""
    log = logging.getLogger(LOGGER_NAME)
    if not log.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("[%(asctime)s] [%(levelname)s] %(message)s"))
        log.addHandler(handler)
        log.setLevel(level_wanted(os.environ) or "INFO")
    return log


def level_wanted(env: Mapping[str, str]) -> str | None:
    """DEBUG to CRITICAL; None where none is asked for, or one that does not exist."""
    name = (env.get(ENV_LOG_LEVEL) or env.get("LOGLEVEL") or "").upper()
    return name if name in LEVELS else None


def line(rank: int, text: str) -> str:
    return f"[FaultTolerance] rank {rank}: {text}"
