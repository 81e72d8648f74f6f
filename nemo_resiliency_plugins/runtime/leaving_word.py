"""Files by which a process tells others something: where one cannot be written, that is a warning and no end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from nemo_resiliency_plugins.runtime.log import logger


@contextlib.contextmanager
def told_if_not_left(what: str, then: str = "the retry policy may count wrong") -> Iterator[None]:
    """A full or read-only disk may not end a training, nor keep a rank from leaving; whoever reads is told less."""
    try:
        yield
    except OSError as error:
        logger().warning("[FaultTolerance] %s cannot be left for others, and %s: %s", what, then, error)
