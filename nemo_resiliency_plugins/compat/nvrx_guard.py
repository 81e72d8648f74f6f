"""A client of NVRx's rank monitor that somebody else owns and that may lose its monitor."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

GUARDED = (
    "start_section",
    "end_section",
    "end_all_sections",
    "send_heartbeat",
    "calculate_and_set_section_timeouts",
    "calculate_and_set_hb_timeouts",
    "load_state_dict",
    "shutdown_workload_monitoring",
)


class GuardedClient:
    """The client itself, except that a lost monitor is no error.

    Slurm signals every process of a step, the rank monitors too, and those (0.4.1 to 0.7.0) end on SIGTERM; 0.4.1 and
    0.5.0 cut the socket of live ranks at a restart as well. The rank's next call raises, and takes the save that the
    signal was sent for with it. What a call has to agree on with other ranks it does before it writes to the socket.

    Args:
        lost: is told the first time.
    """

    def __init__(self, client: Any, lost: Callable[[str], None]) -> None:
        module = importlib.import_module("nvidia_resiliency_ext.fault_tolerance")
        self._errors = (module.RankMonitorClientError, OSError, EOFError)
        self._client, self._lost, self._is_lost = client, lost, False

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._client, name)
        return functools.partial(self._call, attribute) if name in GUARDED else attribute

    def _call(self, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        try:
            return method(*arguments, **options)
        except self._errors as error:
            if not self._is_lost:
                self._is_lost = True
                self._lost(str(error))
            return None
