"""Files by which a process tells others something: where one cannot be written, that is a warning and no end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from nemo_resiliency_plugins.runtime.log import logger


@contextlib.contextmanager
def told_if_not_left(what: str) -> Iterator[None]:
    """A full or read-only disk may not end a training, nor keep a rank from leaving; whoever reads is told less."""
    try:
        yield
    except OSError as error:
        text = "cannot be left for others, and the retry policy may count wrong"
        logger().warning("[FaultTolerance] %s %s: %s", what, text, error)
