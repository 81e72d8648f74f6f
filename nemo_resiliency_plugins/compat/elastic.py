"""How torch's elastic agent starts the process of a rank: NVRx 0.4.1 and 0.5 bring a copy, later ones use torch's."""

from __future__ import annotations

import importlib
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any

PLACE = "multiprocessing.subprocess_handler.subprocess_handler"
HOMES = ("torch.distributed.elastic", "nvidia_resiliency_ext.fault_tolerance._torch_elastic_compat")

Popen = subprocess.Popen[bytes]
Ask = Callable[[Sequence[str], Mapping[str, str], Sequence[int]], Popen | None]


def ask_before_a_rank_starts(ask: Ask) -> None:
    """``ask`` gets the command, the variables and the two outputs of a rank, and may bring its process.

    A launcher that starts its ranks in another way, or reads their outputs through pipes, is left alone.
    """
    for home in HOMES:
        try:
            handler = importlib.import_module(f"{home}.{PLACE}").SubprocessHandler
        except ImportError:
            continue
        handler._popen = _asking(ask, handler._popen)


def _asking(ask: Ask, usual: Callable[..., Popen]) -> Callable[..., Popen]:
    def popen(self: Any, args: Sequence[str], env: Mapping[str, str]) -> Popen:
        files = [self._stdout or 1, self._stderr or 2]
        if subprocess.PIPE in files:
            return usual(self, args, env)
        outputs = [each if isinstance(each, int) else each.fileno() for each in files]
        return ask(args, env, outputs) or usual(self, args, env)

    return popen
