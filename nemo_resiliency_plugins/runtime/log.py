"""The log of the runtime: lines that begin with ``[FaultTolerance]``, on rank 0 unless a rank has news of its own."""

from __future__ import annotations

import logging
import os
import sys

from nemo_resiliency_plugins.contract import ENV_LOG_LEVEL

LOGGER_NAME = "nemo_resiliency_plugins"


def logger() -> logging.Logger:
    """The package's logger; it gets a handler of its own only where the user has configured none."""
    log = logging.getLogger(LOGGER_NAME)
    if not log.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("[%(asctime)s] [%(levelname)s] %(message)s"))
        log.addHandler(handler)
        log.setLevel(_level(os.environ.get(ENV_LOG_LEVEL) or os.environ.get("LOGLEVEL") or "INFO"))
    return log


def _level(name: str) -> int:
    level = logging.getLevelName(name.upper())
    return level if isinstance(level, int) else logging.INFO


def line(rank: int, text: str) -> str:
    return f"[FaultTolerance] rank {rank}: {text}"
