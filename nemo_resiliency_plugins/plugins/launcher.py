"""The launcher that LocalExecutor gets: NeMo-Run's own for ft_launcher, which also remembers who set what."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from nemo_run.core.execution.launcher import LAUNCHER_MAP, FaultTolerance, Launcher, Torchrun

from nemo_resiliency_plugins.config.rules import default_of
from nemo_resiliency_plugins.errors import ConflictError

ELSEWHERE = {
    "workload_check_interval": "Give workload_check_interval to FaultTolerancePlugin",
    "log_level": "Set NRP_LOG_LEVEL in executor.env_vars",
    "rank_termination_signal": "Leave it unset: a rank that hangs is killed",
    "rdzv_backend": "Leave it unset: the nodes meet by c10d",
}
"""Where what is set on a launcher of NeMo-Run's has its place."""
CHOSEN_ANEW = {
    "rdzv_port": "each attempt takes a port that is free",
    "rdzv_id": "it is the name of the attempt",
}
SET_BY_NEMO_RUN = ("cfg_path", "finished_flag_file", "job_results_file")
REMEDY = "Leave the executor's launcher unset, or set it to 'torchrun' or 'ft'."


@dataclasses.dataclass(kw_only=True)
class OwningLauncher(FaultTolerance):
    """``owners`` maps what plugins changed to the plugin that did."""

    owners: dict[str, str] = dataclasses.field(default_factory=dict)

    def get_nsys_prefix(self, profile_dir: str) -> list[str] | None:
        """A profiler that was switched on after the plugins were applied is refused here.

        Raises:
            ConflictError: nsys would profile the launcher, not the ranks.
        """
        refuse_nsys(self)
        return None


Wanted = TypeVar("Wanted", bound=Launcher)


def named(launcher: Launcher | str | None) -> Launcher | None:
    """The launcher itself, where NeMo-Run accepts a name for it."""
    made: Launcher | None = LAUNCHER_MAP[launcher]() if launcher in ("torchrun", "ft") else launcher
    return made


def take_over(present: Launcher | str | None, wanted: Wanted) -> Wanted:
    """``wanted``, with what the user has set on the ``present`` launcher.

    Raises:
        ConflictError: the present launcher cannot be replaced, or sets a field to another value.
    """
    given = named(present)
    if given is None:
        return wanted
    if type(given) not in (Launcher, Torchrun, FaultTolerance, type(wanted)):
        raise ConflictError("executor.launcher", given, "cannot be replaced by ours", REMEDY)
    refuse_nsys(given)
    return dataclasses.replace(wanted, **_chosen(given, wanted))


def refuse_nsys(launcher: Launcher) -> None:
    """Raises ConflictError for a launcher that profiles."""
    if launcher.nsys_profile:
        raise _nsys_conflict()


def _nsys_conflict() -> ConflictError:
    rule = "the launcher cannot be profiled by nsys: that would wrap it, not the ranks"
    return ConflictError("launcher.nsys_profile", True, rule, "Profile without the plugin")


def _chosen(present: Launcher, wanted: Launcher) -> dict[str, Any]:
    """The fields that were set on ``present`` and that ``wanted`` leaves open or sets alike."""
    chosen = {}
    for field in dataclasses.fields(present):
        value, default = getattr(present, field.name), default_of(field)
        if value == default or field.name in ("owners", "tasks"):
            continue
        if not hasattr(wanted, field.name):
            _refuse_lost(field.name, value)
            continue
        want = getattr(wanted, field.name, default)
        if want not in (default, value):
            rule = f"the plugin wants {want!r}, the executor's launcher has this value"
            raise ConflictError(f"launcher.{field.name}", value, rule, "Set it in one place only")
        chosen[field.name] = value
    return chosen


def _refuse_lost(name: str, value: Any) -> None:
    """Raises ConflictError for a setting of NeMo-Run's launcher that would be lost."""
    if name not in (*CHOSEN_ANEW, *SET_BY_NEMO_RUN):
        rule = "the launcher that replaces it has no such setting"
        raise ConflictError(f"launcher.{name}", value, rule, ELSEWHERE.get(name, "Leave it unset"))


def without_meaning(present: Launcher | None) -> list[str]:
    """What is set on a launcher of NeMo-Run's and decided otherwise on Slurm, in words."""
    found = {field.name: (getattr(present, field.name), default_of(field)) for field in _fields(present)}
    return [
        f"launcher.{name}={value} has no effect: {CHOSEN_ANEW[name]}"
        for name, (value, default) in found.items()
        if name in CHOSEN_ANEW and value != default
    ]


def _fields(present: Launcher | None) -> tuple[dataclasses.Field[Any], ...]:
    return () if present is None else dataclasses.fields(present)
