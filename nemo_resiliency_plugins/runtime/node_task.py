"""The node script as a function, for tools such as submitit that run functions on the nodes of a Slurm job."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from nemo_resiliency_plugins.contract import ENV_DIR, Attempt, Reason, Verdict, notice_path, started_path

HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)


@dataclasses.dataclass(frozen=True)
class NodeTask:
    """Runs ``command`` on this node, and returns when the training has finished.

    Any other end ends the process with the code of the node script, past the tool that called: for it the job has not
    ended yet, since the retry policy of the batch script decides what follows.
    """

    command: Sequence[str]

    def __call__(self) -> None:
        for number in HANDLED:
            # Slurm signals the node script itself; a handler, unlike SIG_IGN, is not passed on to it.
            signal.signal(number, lambda number, frame: None)
        script = [sys.executable, "-m", f"{__package__}.node", *self.command]
        code = subprocess.run(script, check=False).returncode
        if code != 0 or not is_finished(Path(os.environ[ENV_DIR]), Attempt.from_env(os.environ)):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code if code >= 0 else 128 - code)


def is_finished(directory: Path, attempt: Attempt) -> bool:
    """Whether a code of 0 means that there is nothing left to do: the policy decides alike."""
    verdict = Verdict.read(directory, attempt)
    if verdict is not None:
        return verdict.reason is Reason.FINISHED
    return not started_path(directory, attempt).exists() and not notice_path(directory, attempt).exists()
