"""Telling a training script about the plugin through its arguments, for scripts that read no configuration of ours."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import nemo_run as run

from nemo_resiliency_plugins.errors import ConfigError, UnsupportedError
from nemo_resiliency_plugins.plugins.edits import AddArguments, Edit

MEGATRON_BRIDGE = "megatron_bridge"


@dataclasses.dataclass
class FaultTolerancePluginScriptArgs:
    """What ``script_args_converter_fn`` of FaultTolerancePlugin is given."""

    enable_ft_package: bool
    calc_ft_timeouts: bool

    def overrides(self) -> list[str]:
        """As Megatron-Bridge's scripts take them."""
        return _hydra({"ft.enable_ft_package": self.enable_ft_package, "ft.calc_ft_timeouts": self.calc_ft_timeouts})


@dataclasses.dataclass
class PreemptionPluginScriptArgs:
    """What ``script_args_converter_fn`` of PreemptionPlugin is given."""

    enable_exit_handler: bool
    enable_exit_handler_for_data_loader: bool

    def overrides(self) -> list[str]:
        """As Megatron-Bridge's scripts take them."""
        for_loader = self.enable_exit_handler_for_data_loader
        return _hydra(
            {
                "train.exit_signal_handler": self.enable_exit_handler,
                "train.exit_signal_handler_for_dataloader": for_loader,
            }
        )


@dataclasses.dataclass
class CheckpointPluginScriptArgs:
    """What ``script_args_converter_fn`` of CheckpointPlugin is given."""

    async_save: bool
    ckpt_format: str
    non_persistent_local_ckpt_dir: str | None
    non_persistent_local_ckpt_algo: str

    def overrides(self, leave_out: Collection[str] = ()) -> list[str]:
        """As Megatron-Bridge's scripts take them; without a local tier its settings are left out."""
        is_local = self.non_persistent_local_ckpt_dir is not None
        values = {name: value for name, value in dataclasses.asdict(self).items() if is_local or "local" not in name}
        return _section("checkpoint", values, leave_out)


@dataclasses.dataclass
class StragglerPluginScriptArgs:
    """What ``script_args_converter_fn`` of StragglerPlugin is given."""

    enabled: bool
    report_time_interval: float
    calc_relative_gpu_perf: bool
    calc_individual_gpu_perf: bool
    num_gpu_perf_scores_to_print: int
    gpu_relative_perf_threshold: float
    gpu_individual_perf_threshold: float
    stop_if_detected: bool
    enable_logging: bool
    profiling_interval: int

    def overrides(self, leave_out: Collection[str] = ()) -> list[str]:
        """As Megatron-Bridge's scripts take them, without the fields that the script is given already."""
        return _section("nvrx_straggler", dataclasses.asdict(self), leave_out)


@dataclasses.dataclass
class RerunStateMachinePluginScriptArgs:
    """What ``script_args_converter_fn`` of RerunStateMachinePlugin is given."""

    rerun_mode: str
    check_for_nan_in_loss: bool
    check_for_spiky_loss: bool
    spiky_loss_factor: float

    def overrides(self, leave_out: Collection[str] = ()) -> list[str]:
        """As Megatron-Bridge's scripts take them, without the fields that the script is given already."""
        return _section("rerun_state_machine", dataclasses.asdict(self), leave_out)


def _section(section: str, values: Mapping[str, Any], leave_out: Collection[str]) -> list[str]:
    return _hydra({f"{section}.{name}": value for name, value in values.items() if name not in leave_out})


def _hydra(values: Mapping[str, Any]) -> list[str]:
    return [f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in values.items()]


def argument_edits(owner: str, task: run.Script | run.Partial, arguments: list[str]) -> Iterator[Edit]:
    """The edit that adds ``arguments``, if there are any.

    Raises:
        UnsupportedError: the task takes none.
    """
    if arguments and not (isinstance(task, run.Script) and task.path):
        rule = "overrides and script_args_converter_fn need a run.Script with a path"
        remedy = "Leave both unset: the session is told without them."
        raise UnsupportedError("task", type(task).__name__, rule, remedy)
    if arguments:
        yield AddArguments(owner, tuple(arguments))


def require_module_level(field: str, function: Callable[..., Any] | None) -> None:
    """Raises ConfigError for a function that does not survive NeMo-Run's serialisation."""
    if function is not None and (not callable(function) or "<" in getattr(function, "__qualname__", "<")):
        rule = "must be a function at the top level of a module: NeMo-Run serialises it by name"
        raise ConfigError(field, function, rule, "Move it to a module, not a lambda or a nested function.")
