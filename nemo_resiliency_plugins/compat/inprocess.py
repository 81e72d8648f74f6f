"""NVRx's in-process restart (``nvidia_resiliency_ext.inprocess``), with the differences between its versions taken out.

Measured with 0.4.1; what differs from 0.5.0 on is said where it matters. Since 0.6 NVRx calls the module deprecated.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import os
import re
import threading
import typing
import warnings
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any

from nemo_resiliency_plugins.compat.spare_ranks import Plan, assignment

TIMES = (
    "monitor_thread_interval",
    "monitor_process_interval",
    "heartbeat_interval",
    "progress_watchdog_interval",
    "soft_timeout",
    "hard_timeout",
    "heartbeat_timeout",
    "barrier_timeout",
    "completion_timeout",
    "last_call_wait",
    "termination_grace_time",
)
"""The wrapper's arguments that are times; 0.4.1 to 0.7.0 have all of them."""


@dataclasses.dataclass(frozen=True)
class Turn:
    """One entry into the train function, as this process sees it. ``first_rank`` is the rank that it began with."""

    iteration: int
    first_rank: int
    rank: int | None
    world_size: int

    @property
    def is_active(self) -> bool:
        """False for a spare, which waits."""
        return self.rank is not None


class Hooks(typing.Protocol):
    """What is done between two lives; all in the main thread."""

    def begins(self, turn: Turn, store: Any) -> None:
        """Before each life. Raises HandOver on all ranks alike to end the restarts."""

    def ends(self, turn: Turn, store: Any) -> None:
        """After a life that a fault has ended; an error lets this rank leave."""

    def aborts(self) -> None:
        """After a fault here or elsewhere, in a thread beside the main one: make it leave what it waits in."""

    def lost(self, iteration: int, ranks: set[int]) -> None:
        """Of that life, ranks that will not come back."""


@dataclasses.dataclass(frozen=True)
class Names:
    """NVRx's own, for the one that asks."""

    hand_over: type[BaseException]
    call_wrapper: type


def names() -> Names:
    """``hand_over``: what ends the wrapper on this rank without a restart."""
    module = _load()
    return Names(module.exception.RestartAbort, module.CallWrapper)


def _load() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch 2.13 warns about the pynvml that 0.4.1 brings
        module = importlib.import_module("nvidia_resiliency_ext.inprocess")
    warnings.filterwarnings("ignore", "logging not initialized", UserWarning)  # what happens is in our own log
    return module


def wrap(
    function: Callable[..., Any],
    *,
    times: Mapping[str, float],
    plan: Plan,
    hooks: Hooks,
    prefix: str,
    log_file: str | None,
) -> Callable[..., Any]:
    """``function(call_wrapper, ...)`` under NVRx's wrapper; call the result with None in the place of the first.

    Args:
        times: seconds, see :data:`TIMES`.
        prefix: a namespace of this call in the store at MASTER_ADDR and MASTER_PORT.
    """
    module = _load()
    bound = timedelta(seconds=times["barrier_timeout"])
    store_class = _store_class(module, bound)
    abort = Aborter(module)
    parts = _parts(module, hooks, abort, Board(prefix, bound))
    with _without_local_rank():
        wrapper = module.Wrapper(
            store_factory=store_class,
            store_kwargs={"prefix": prefix},
            initialize=parts.initialize,
            abort=parts.abort,
            finalize=parts.finalize,
            health_check=module.health_check.CudaHealthCheck(timeout=timedelta(seconds=times["soft_timeout"] / 2)),
            rank_assignment=assignment(module, plan, hooks.lost),
            monitor_process_logfile=log_file,
            **{name: timedelta(seconds=times[name]) for name in TIMES},
        )
    wrapped = wrapper(_entered_with(module.CallWrapper, function))
    return typing.cast(Callable[..., Any], wrapped)


def destroy_process_groups() -> None:
    """Abort what runs on NCCL, and forget all groups; safe beside NVRx's own thread that does the same."""
    Aborter(_load())(None)


class Aborter:
    """NVRx's abort, one at a time: the main thread of a failed rank does it too."""

    _lock = threading.RLock()

    def __init__(self, module: Any) -> None:
        # TransformerEngine's buffers hang on the communicators.
        self._steps = [module.abort.AbortTransformerEngine(), module.abort.AbortTorchDistributed()]

    def __call__(self, state: Any) -> Any:
        with self._lock:
            for step in self._steps:
                step(state)
        return state


def _entered_with(call_wrapper: type, function: Callable[..., Any]) -> Callable[..., Any]:
    """NVRx injects its call wrapper by annotations, and fails where the user's are strings (0.4.1)."""

    def life(call: Any, args: Any, kwargs: Any) -> Any:
        return function(call, args, kwargs)

    life.__annotations__.clear()
    life.__annotations__["call"] = call_wrapper
    return life


def wanted_by(function: Callable[..., Any]) -> list[str]:
    """The parameters of ``function`` that are annotated with NVRx's CallWrapper, also in quotes or as an option."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [parameter.name for parameter in parameters if _is_call_wrapper(parameter.annotation)]


def _is_call_wrapper(annotation: Any) -> bool:
    if isinstance(annotation, str):
        return re.search(r"\bCallWrapper\b", annotation) is not None
    kind = names().call_wrapper
    return annotation is kind or kind in typing.get_args(annotation)


@contextlib.contextmanager
def _without_local_rank() -> Iterator[None]:
    """From 0.5 on the wrapper checks the GPU of LOCAL_RANK after each fault, and without NVML all ranks fail."""
    import torch

    local_rank = None if torch.cuda.is_available() else os.environ.pop("LOCAL_RANK", None)
    try:
        yield
    finally:
        if local_rank is not None:
            os.environ["LOCAL_RANK"] = local_rank


@dataclasses.dataclass(frozen=True)
class _Parts:
    initialize: Any
    abort: Any
    finalize: Any


def _parts(module: Any, hooks: Hooks, abort: Aborter, board: Board) -> _Parts:
    """NVRx checks the base classes of what it is given."""

    class Begin(module.initialize.Initialize):  # type: ignore[misc]
        def __call__(self, state: Any) -> Any:
            hooks.begins(_turn(state), board.store())
            return state

    class Abort(module.abort.Abort):  # type: ignore[misc]
        def __call__(self, state: Any) -> Any:
            hooks.aborts()
            return abort(state)

    class End(module.finalize.Finalize):  # type: ignore[misc]
        def __call__(self, state: Any) -> Any:
            hooks.ends(_turn(state), board.store())
            return state

    return _Parts(Begin(), Abort(), End())


def _turn(state: Any) -> Turn:
    active = state.active_rank if state.mode.name == "ACTIVE" else None
    return Turn(state.iteration, state.initial_rank, active, state.active_world_size)


def _store_class(module: Any, bound: timedelta) -> Any:
    """A namespace of its own in the store that is served at MASTER_ADDR:MASTER_PORT.

    No rank serves it, so NVRx has no rank to wait for at the end.
    """
    import torch.distributed as dist

    class Store(dist.PrefixStore, module.store.StoreMixin):  # type: ignore[misc, name-defined]
        def __init__(self, prefix: str) -> None:
            super().__init__(prefix, _client(bound))

    return Store


def _client(bound: timedelta) -> Any:
    import torch.distributed as dist

    make: Any = dist.TCPStore  # type: ignore[attr-defined]
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return make(address, port, is_master=False, wait_for_workers=False, timeout=bound)


class Board:
    """The hooks' own line to the store.

    NVRx's is held by its monitor thread, which waits in it time after time; the main thread would get in between only
    by luck, after seconds.
    """

    def __init__(self, prefix: str, bound: timedelta) -> None:
        self._prefix, self._bound = prefix, bound
        self._store: Any = None

    def store(self) -> Any:
        """Made in the first life, while MASTER_ADDR is still that of the start."""
        if self._store is None:
            import torch.distributed as dist

            make: Any = dist.PrefixStore  # type: ignore[attr-defined]
            self._store = make(f"{self._prefix}/hooks", _client(self._bound))
        return self._store
