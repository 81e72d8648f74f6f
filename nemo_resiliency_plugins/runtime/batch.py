"""What a session leaves for the batch script: rank 0 writes, where there is a directory for it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from nemo_resiliency_plugins.contract import (
    ENV_NOTICE,
    Attempt,
    ExitCode,
    Reason,
    Verdict,
    progress_path,
    started_path,
    verdict_path,
    write_atomically,
)
from nemo_resiliency_plugins.runtime.identity import Identity
from nemo_resiliency_plugins.runtime.leaving_word import told_if_not_left

CODES = {
    Reason.PREEMPTED_UNSAVED: ExitCode.FAILED,
    Reason.RERUN_ELSEWHERE: ExitCode.RERUN_ELSEWHERE,
    Reason.VALIDATION_FAILED: ExitCode.VALIDATION_FAILED,
}
"""Of the reasons that do not end a rank with 0."""


class BatchNotes:
    """The files of one rank; on all but rank 0 every method does nothing."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._directory = identity.directory if identity.rank == 0 else None

    def started(self) -> None:
        """A session has started in this attempt."""
        attempt = self._identity.attempt
        # Of another run in the same directory. Under a node script the verdict can only be that of a rank which
        # was told to leave while this one was still on its way here.
        if self._directory is not None and attempt.cycle == 0 and ENV_NOTICE not in os.environ:
            with told_if_not_left("the verdict of another run"):
                verdict_path(self._directory, attempt).unlink(missing_ok=True)
        self._leave(started_path, "")

    def checkpointed(self, step: int) -> None:
        """The state after ``step`` steps is safe."""
        self._leave(progress_path, f"{step}\n")

    def ended(self, reason: Reason, step: int, of: tuple[int, str] | None = None) -> None:
        """All ranks end because of ``reason``, after ``step`` steps; ``of``: the rank and nodes that are the cause."""
        if self._directory is not None:
            code = CODES.get(reason, ExitCode.OK)
            rank, node = of or (self._identity.rank, self._identity.node)
            verdict = Verdict(reason, code, step, rank, node)
            with told_if_not_left(f"the verdict {reason.value}"):
                verdict.write(self._directory, self._identity.attempt)

    def _leave(self, path: Callable[[Path, Attempt], Path], text: str) -> None:
        if self._directory is not None:
            file = path(self._directory, self._identity.attempt)
            with told_if_not_left(file.name):
                write_atomically(file, text)
