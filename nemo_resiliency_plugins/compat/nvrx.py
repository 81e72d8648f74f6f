"""What differs between the versions of nvidia-resiliency-ext (NVRx), and what each of them needs.

Facts measured with the wheels of 0.4.1, 0.5.0, 0.6.0 and 0.7.0. Each quirk says when it can go.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
import math
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nemo_resiliency_plugins.errors import UnsupportedError

DISTRIBUTION = "nvidia-resiliency-ext"
OLDEST, FIRST_WITH_SPARES, NEWER_THAN_ANY = (0, 4, 1), (0, 6), (0, 8)

MONITOR_SOCKET = "FT_RANK_MONITOR_IPC_SOCKET"
"""ft_launcher gives each rank the socket of its monitor in this variable; torchrun does not."""

INSTALL_HINT = (
    "Install it where the ranks run: pip install 'nemo-resiliency-plugins[runtime]'. "
    "Wheels of 0.5 and later need glibc 2.39, pip takes 0.4.1 on older systems"
)


def installed_version() -> str | None:
    """The version of NVRx in this environment, or None."""
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_spare_nodes(version: str | None, spares: bool) -> None:
    """Raises UnsupportedError where nodes would not stand by: 0.4.1 puts all of them to work, 0.5.0 says it cannot."""
    if spares and _numbers(check_version(version)) < FIRST_WITH_SPARES:
        remedy = "Set spare_nodes=0, or install NVRx 0.6 or later."
        raise UnsupportedError(DISTRIBUTION, version, "cannot keep spare nodes", remedy)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3] if part.isdigit())


def check_version(version: str | None) -> str:
    """Return ``version`` if this package works with it.

    Raises:
        UnsupportedError: NVRx is missing or of an untried version.
    """
    if version is None:
        raise UnsupportedError(DISTRIBUTION, None, "is not installed", INSTALL_HINT + ".")
    if not OLDEST <= _numbers(version) < NEWER_THAN_ANY:
        raise UnsupportedError(
            DISTRIBUTION, version, "is not among the versions tried, 0.4.1 to 0.7", INSTALL_HINT + "."
        )
    return version


def launcher_variables(*, monitor_interval: float, workers_stop_timeout: float, term_timeout: float) -> dict[str, str]:
    """Variables that ft_launcher of every version reads.

    Args:
        monitor_interval: seconds between the launcher's looks at its workers.
        workers_stop_timeout: seconds that a restart waits for workers to honour SIGTERM.
        term_timeout: seconds between a signal forwarded to the ranks and SIGKILL.
    """
    return {
        "PET_MONITOR_INTERVAL": f"{monitor_interval:g}",
        "PET_WORKERS_STOP_TIMEOUT": f"{workers_stop_timeout:g}",
        "PET_TERM_TIMEOUT": f"{term_timeout:g}",
        # 0.5.0 exits without GROUP_RANK or SLURM_PROCID; drop with 0.5.
        "GROUP_RANK": "0",
    }


def rendezvous_options(endpoint: str, *, attempt: str, is_head: bool, start_skew_s: float) -> list[str]:
    """Options by which the launchers of one attempt meet.

    Args:
        endpoint: ``host:port``; the launcher on the head node listens there.
        attempt: names the meeting, so that no key of an earlier attempt is read.
        start_skew_s: seconds that nodes may start apart: both of torch's windows, in one option, because the
            option does not add up when given twice.
    """
    skew = math.ceil(start_skew_s)
    conf = f"is_host={int(is_head)},join_timeout={skew},read_timeout={max(60, skew)}"
    return [
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={endpoint}",
        f"--rdzv-id={attempt}",
        f"--rdzv-conf={conf}",
    ]


def settings_options(path: Path) -> list[str]:
    """Options that point ft_launcher of every version to the file with :func:`monitor_settings`."""
    # 0.4.1 turns its NIC monitor on whatever the file says; drop with 0.4.1.
    return [f"--ft-cfg-path={path}", "--ft-enable-nic-monitor=false"]


def log_options(level: str) -> list[str]:
    """The level for rank monitors of every version."""
    return [f"--ft-log-level={level}"]


def log_variables(level: str, version: str | None) -> dict[str, str]:
    """The level for ft_launcher itself; from 0.5 on it knows DEBUG and INFO alone."""
    if version is not None and _numbers(version) < (0, 5):
        return {"FT_LAUNCHER_LOGLEVEL": level}
    return {"NVRX_LOG_DEBUG": "1"} if level == "DEBUG" else {}


def monitor_settings(
    *,
    section_timeouts: Mapping[str, float | None],
    out_of_section_timeout: float | None,
    workload_check_interval: float,
    heartbeats: tuple[float | None, float | None] = (None, None),
) -> dict[str, Any]:
    """The content of the file that ``--ft-cfg-path`` and ``PET_FT_CFG_PATH`` name; versions skip keys they lack."""
    return {
        "fault_tolerance": {
            # 0.4.1 and 0.5.0 default to 60 and 45 minutes, which would end a run that reports sections only.
            "initial_rank_heartbeat_timeout": heartbeats[0],
            "rank_heartbeat_timeout": heartbeats[1],
            "rank_section_timeouts": dict(section_timeouts),
            "rank_out_of_section_timeout": out_of_section_timeout,
            "workload_check_interval": workload_check_interval,
            # 0.6 and later turn these on, and nodes without NICs or numactl then do not start.
            "enable_nic_monitor": False,
            "enable_nic_healthcheck": False,
            "numa_bind_strict": False,
            # From 0.6 on a restart waits until the cards are free, and looks every 2 s by default.
            "gpu_memory_poll_interval": 0.1,
        }
    }


class MonitorLost(Exception):
    """The monitor no longer answers: 0.4.1 and 0.5.0 cut the socket of live ranks when they restart workers."""


class MonitorClient:
    """NVRx's client of the rank monitor, with the differences between its versions taken out.

    Raises:
        MonitorLost: from every method but :meth:`close`, when the monitor is gone.
    """

    def __init__(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch 2.13 warns about the pynvml that 0.4.1 brings
            module = importlib.import_module("nvidia_resiliency_ext.fault_tolerance")
        logging.getLogger("RankMonitorClient").setLevel(logging.WARNING)
        self._errors = (module.RankMonitorClientError, OSError, EOFError)
        self._client = module.RankMonitorClient()
        self._call(self._client.init_workload_monitoring)
        settings = self._client.cfg
        self.section_timeouts: dict[str, float | None] = dict(settings.rank_section_timeouts or {})
        self.out_of_section_timeout: float | None = settings.rank_out_of_section_timeout
        self.heartbeat_timeouts: tuple[float | None, float | None] = (
            settings.initial_rank_heartbeat_timeout,
            settings.rank_heartbeat_timeout,
        )

    def _call(self, method: Any, *arguments: Any) -> None:
        try:
            method(*arguments)
        except self._errors as error:
            raise MonitorLost(str(error)) from error

    def start_section(self, name: str) -> None:
        self._call(self._client.start_section, name)

    def end_section(self, name: str) -> None:
        self._call(self._client.end_section, name)

    def heartbeat(self) -> None:
        self._call(self._client.send_heartbeat)

    def set_timeouts(
        self,
        sections: Mapping[str, float | None],
        out_of_section: float | None,
        heartbeats: tuple[float | None, float | None],
    ) -> None:
        """Replace all limits at once: a state that lacks a section turns its detection off in some versions."""
        state = {
            "section": {
                "section": dict(sections),
                "out_of_section": out_of_section,
                "calculated_sections": sorted(sections),
                "is_out_of_section_calculated": True,
            },
            "heartbeat": {"initial": heartbeats[0], "subsequent": heartbeats[1], "were_calculated": True},
        }
        self._call(self._client.load_state_dict, {"current_timeouts": state})

    def close(self) -> None:
        """End the watch of this rank: no collective, no error."""
        try:
            self._client.shutdown_workload_monitoring()
        except self._errors:
            # A socket that the launcher has cut already needs no shutdown.
            self._client.is_initialized = False


class WorkerLost(Exception):
    """The process that writes checkpoints has died or does not answer."""


class CheckpointWorker:
    """NVRx's persistent process that copies tensors from the GPU and writes them in DCP's format, for one rank.

    Needs CUDA: the worker of every version sets a device up.
    """

    POLL_S = 0.01

    def __init__(self) -> None:
        package = "nvidia_resiliency_ext.checkpointing.async_ckpt"
        self._core = importlib.import_module(f"{package}.core")
        self._files = importlib.import_module(f"{package}.filesystem_async")
        self._saver = importlib.import_module(f"{package}.state_dict_saver")
        self._lost = False
        self._has_options = _numbers(check_version(installed_version())) >= (0, 5)
        # 0.5.0's default worker outlives a rank that was killed; a daemon may start no processes, hence also below.
        self._queue = self._core.AsyncCallsQueue(persistent=True, **({"is_daemon": True} if self._has_options else {}))

    def plan(self, state: dict[str, Any], path: Path, planner: Any, group: Any) -> tuple[Any, Any]:
        """Collective. The writer that holds this rank's part, and rank 0's metadata.

        Nothing is cached: the checks for reuse (all versions) assume that no key is ever added.
        """
        options = {"is_multiproc_io": False} if self._has_options else {}
        writer = self._files.FileSystemWriterAsync(path, **options)
        writer, metadata, _ = self._saver.save_state_dict_async_plan(state, writer, group, planner=planner)
        return writer, metadata

    def start(self, writer: Any, timeout_s: float) -> None:
        """Return when the worker has copied the tensors.

        Raises:
            WorkerLost: NVRx's own waits, here and below, never return when the worker has died (0.4.1 to 0.7.0).
        """
        function, preload, arguments = writer.get_save_function_and_args()
        request = self._core.AsyncRequest(function, tuple(arguments), [], preload_fn=preload, async_fn_kwargs={})
        handing_over = threading.Thread(target=self._queue.schedule_async_request, args=(request,), daemon=True)
        handing_over.start()
        self._await(lambda: not handing_over.is_alive(), timeout_s)

    def wait(self, timeout_s: float) -> None:
        """Return when the worker has written. Raises WorkerLost."""

        def is_done() -> bool:
            self._queue.maybe_finalize_async_calls(blocking=False, no_dist=True)
            return not self._queue.get_num_unfinalized_calls()

        self._await(is_done, timeout_s)

    def close(self) -> None:
        """End the process; what it has not finished is lost."""
        caller = self._queue.persistent_caller
        process = caller.process if caller is not None else None
        if process is not None and (self._lost or self._queue.get_num_unfinalized_calls()):
            process.kill()
            process.join()
            caller.process = None
            self._queue.async_calls.clear()
            for pipe in (caller.queue, caller.preload_q):
                pipe.cancel_join_thread()  # what is in it nobody will read
        self._queue.close()

    def _await(self, condition: Callable[[], bool], timeout_s: float) -> None:
        end = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > end or not self._is_alive():
                self._lost = True
                raise WorkerLost("the process that writes checkpoints has died or does not answer")
            time.sleep(self.POLL_S)

    def _is_alive(self) -> bool:
        caller = self._queue.persistent_caller
        return bool(caller is None or caller.process is None or caller.process.is_alive())
