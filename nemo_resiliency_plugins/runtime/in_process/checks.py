"""What must be so before a training starts under in-process restart; each breach is one clear error."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Mapping, MutableMapping
from typing import Any

from nemo_resiliency_plugins.compat.nvrx import MONITOR_SOCKET, check_version, installed_version
from nemo_resiliency_plugins.config import InProcessRestartConfig
from nemo_resiliency_plugins.errors import ConfigError, UnsupportedError

ENV_ANY_NCCL = "NRP_ALLOW_ANY_NCCL"
LOG_LEVEL = "TORCH_CPP_LOG_LEVEL"
VARIABLES = {
    LOG_LEVEL: ("error", "fatal"),
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": ("0",),
    "NCCL_NVLS_ENABLE": ("0",),
}
"""Required by NVRx's documentation (0.4.1 to 0.7.0); the first value is set where there is none."""
OLDEST_TORCH = (2, 5, 1)
OLDEST_NCCL, BROKEN_NCCL = (2, 26, 2), ((2, 28, 3), (2, 28, 8))
WATCHDOG = "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"
WATCHDOG_S = 480.0
"""Its default (torch 2.5 to 2.13)."""


def set_variables(env: MutableMapping[str, str], *, torch_is_loaded: bool) -> None:
    """Set what is unset.

    Raises:
        ConfigError: one is set to something else, or it is too late to set it.
    """
    if torch_is_loaded and LOG_LEVEL not in env:
        # The warning names the other end of the connection, which waits for the name server (torch 2.13).
        rule = "is not set, and torch, which is loaded, warns after each wait at its store; that can take seconds"
        raise ConfigError(LOG_LEVEL, None, rule, f"Export {LOG_LEVEL}=error before the start.")
    for name, allowed in VARIABLES.items():
        value = env.get(name)
        if value is None:
            env[name] = allowed[0]
        elif value.lower() not in allowed:
            rule = f"in-process restart needs {' or '.join(allowed)}"
            raise ConfigError(name, value, rule, f"Unset it, or export {name}={allowed[0]}.")


def check_versions(torch_version: str, nccl: tuple[int, ...] | None, env: Mapping[str, str]) -> None:
    """``nccl``: None where there is no GPU.

    Raises:
        UnsupportedError: NVRx, torch or NCCL is missing, too old, or known to crash.
    """
    check_version(installed_version())
    if _numbers(torch_version) < OLDEST_TORCH:
        remedy = "Install torch 2.5.1 or later."
        raise UnsupportedError("torch", torch_version, "is too old for in-process restart", remedy)
    if nccl is None or env.get(ENV_ANY_NCCL) == "1":
        return
    remedy = f"Install another one (2.28.9, say), or export {ENV_ANY_NCCL}=1 to try it all the same."
    if nccl < OLDEST_NCCL:
        raise UnsupportedError("NCCL", _dotted(nccl), "is older than 2.26.2, which aborting needs", remedy)
    if BROKEN_NCCL[0] <= nccl <= BROKEN_NCCL[1]:
        raise UnsupportedError("NCCL", _dotted(nccl), "crashes when it is aborted (2.28.3 to 2.28.8)", remedy)


def check_place(config: InProcessRestartConfig, env: Mapping[str, str]) -> None:
    """Raises ConfigError or UnsupportedError: this process is not where in-process restart can work."""
    if threading.current_thread() is not threading.main_thread():
        raise UnsupportedError("inprocess", "called", "works in the main thread only", "Call it there.")
    if MONITOR_SOCKET in env:
        rule = "in-process restart under ft_launcher: both restart the ranks, and NVRx 0.6 and later do not support it"
        raise UnsupportedError(MONITOR_SOCKET, env[MONITOR_SOCKET], rule, "Start each rank by srun, or by torchrun.")
    world_size = int(env["WORLD_SIZE"])
    active = config.active_world_size
    if active is not None and active > world_size:
        rule = f"is more than the {world_size} ranks of the job"
        raise ConfigError("InProcessRestartConfig.active_world_size", active, rule, "Start more ranks, or lower it.")
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if name not in env:
            rule = "is not set, and the ranks meet there"
            raise ConfigError(name, None, rule, "Export the address of the host of rank 0, and a free port.")
    watchdog = float(env.get(WATCHDOG, WATCHDOG_S))
    if watchdog <= config.hard_timeout:
        rule = f"must be above hard_timeout={config.hard_timeout:g}, or PyTorch kills ranks that would recover"
        raise ConfigError(WATCHDOG, watchdog, rule, "Export a greater number of seconds.")


def check_here(config: InProcessRestartConfig) -> None:
    """All that can be checked before the training; raises what the single checks raise."""
    import torch

    nccl = torch.cuda.nccl.version() if torch.cuda.is_available() else None
    check_versions(torch.__version__, nccl, os.environ)
    check_place(config, os.environ)
    check_no_process_group()


def check_no_process_group() -> None:
    """Raises ConfigError: there is one already, and a life could not end with it."""
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        rule = "was called before the wrapped function, so that its group would outlive a restart"
        raise ConfigError("init_process_group", "called", rule, "Move it into the train function.")


def check_group_timeouts(hard_timeout: float) -> None:
    """For NCCL groups: their watchdog ends the process when a collective takes longer than their timeout.

    Raises:
        ConfigError: that comes before ``hard_timeout``.
    """
    import torch.distributed.distributed_c10d as c10d

    for group in list(c10d._world.pg_map):
        timeout_s = nccl_timeout_s(group)
        if timeout_s is not None and timeout_s <= hard_timeout:
            rule = f"must be above hard_timeout={hard_timeout:g} s, or PyTorch kills ranks that would recover"
            remedy = "Give init_process_group() and new_group() a longer timeout, or lower hard_timeout."
            raise ConfigError("process group timeout", f"{timeout_s:g} s", rule, remedy)


def nccl_timeout_s(group: Any) -> float | None:
    """Seconds; None for a group without NCCL."""
    import torch

    try:
        backend = group._get_backend(torch.device("cuda"))
    except RuntimeError:
        return None
    return float(backend.options._timeout.total_seconds()) if backend.name() == "nccl" else None  # gloo has GPUs too


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
