"""How long a node sleeps before it asks again whether a rendezvous has gone on, and how long it trusts the answer.

By default 1 s each, which a restart pays in full.
"""

from __future__ import annotations

import importlib
import time
import types
from pathlib import Path
from typing import Any

FT = "nvidia_resiliency_ext.fault_tolerance"
RENDEZVOUS = {
    "torchrun": ("torch.distributed.elastic.rendezvous.dynamic_rendezvous",),
    "ft_launcher": (f"{FT}._ft_rendezvous", f"{FT}.ft_rendezvous_barrier"),
}
"""By launcher. NVRx has the second of its own from 0.5 on, whose other waits are of 0.1 s at any number of nodes."""
USUAL_S, SHORTEST_S = 1.0, 0.1
NODES_PER_S = 100
"""That may ask: the answer names all nodes, so that what their store sends grows with the square of their number."""


def shorten(launcher: str, nodes: int) -> None:
    """Let so many nodes ask as often as their store can bear; with a hundred or more nothing changes."""
    pause_s = max(SHORTEST_S, nodes / NODES_PER_S)
    if pause_s >= USUAL_S:
        return
    for name in RENDEZVOUS.get(Path(launcher).name, ()):
        try:
            module: Any = importlib.import_module(name)
        except ImportError:
            continue
        if hasattr(module, "_delay"):
            module._delay = _shorter(module._delay, pause_s)
            _trust_shorter(getattr(module, "_BackendRendezvousStateHolder", None), pause_s)
        else:
            module.time = types.SimpleNamespace(**{**vars(time), "sleep": _shorter(time.sleep, pause_s)})


def _shorter(wait: Any, pause_s: float) -> Any:
    """``wait``, but for what would be the usual pause."""
    return lambda seconds: wait(pause_s if seconds == USUAL_S else seconds)


def _trust_shorter(state_holder: Any, pause_s: float) -> None:
    """Its only parameter with a default is ``cache_duration``; a torch where it is another class keeps its own."""
    if state_holder is not None and state_holder.__init__.__defaults__ == (USUAL_S,):
        state_holder.__init__.__defaults__ = (pause_s,)
