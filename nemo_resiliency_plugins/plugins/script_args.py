"""Telling a training script about the plugin through its arguments, for scripts that read no configuration of ours."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator
from typing import Any, ClassVar

import nemo_run as run

from nemo_resiliency_plugins.errors import ConfigError, UnsupportedError
from nemo_resiliency_plugins.plugins.edits import AddArguments, Edit
from nemo_resiliency_plugins.plugins.task_config import SetTaskConfig, has_config

MEGATRON_BRIDGE = "megatron_bridge"


@dataclasses.dataclass
class ScriptArgs:
    """What a ``script_args_converter_fn`` is given; each plugin has a class of its own."""

    SECTION: ClassVar[str]
    """That of Megatron-Bridge's configuration."""

    def values(self) -> dict[str, Any]:
        """The fields of that section."""
        return dataclasses.asdict(self)

    def overrides(self, leave_out: Collection[str] = ()) -> list[str]:
        """As Megatron-Bridge's scripts take them, without the fields that the script is given already."""
        told = {name: value for name, value in self.values().items() if name not in leave_out}
        return [f"{self.SECTION}.{name}={self.as_text(value)}" for name, value in told.items()]

    @staticmethod
    def as_text(value: Any) -> str:
        return str(value).lower() if isinstance(value, bool) else str(value)


@dataclasses.dataclass
class FaultTolerancePluginScriptArgs(ScriptArgs):
    """What ``script_args_converter_fn`` of FaultTolerancePlugin is given."""

    enable_ft_package: bool
    calc_ft_timeouts: bool

    SECTION = "ft"


@dataclasses.dataclass
class PreemptionPluginScriptArgs(ScriptArgs):
    """What ``script_args_converter_fn`` of PreemptionPlugin is given."""

    enable_exit_handler: bool
    enable_exit_handler_for_data_loader: bool

    SECTION = "train"

    def values(self) -> dict[str, Any]:
        return {
            "exit_signal_handler": self.enable_exit_handler,
            "exit_signal_handler_for_dataloader": self.enable_exit_handler_for_data_loader,
        }

    @staticmethod
    def as_text(value: Any) -> str:
        """Megatron-Bridge writes True and False here, and true and false elsewhere; OmegaConf takes both."""
        return str(value)


@dataclasses.dataclass
class CheckpointPluginScriptArgs(ScriptArgs):
    """What ``script_args_converter_fn`` of CheckpointPlugin is given."""

    async_save: bool
    ckpt_format: str
    non_persistent_local_ckpt_dir: str | None
    non_persistent_local_ckpt_algo: str

    SECTION = "checkpoint"

    def values(self) -> dict[str, Any]:
        """Without a local tier its settings are left out."""
        is_local = self.non_persistent_local_ckpt_dir is not None
        return {name: value for name, value in dataclasses.asdict(self).items() if is_local or "local" not in name}


@dataclasses.dataclass
class StragglerPluginScriptArgs(ScriptArgs):
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

    SECTION = "nvrx_straggler"


@dataclasses.dataclass
class RerunStateMachinePluginScriptArgs(ScriptArgs):
    """What ``script_args_converter_fn`` of RerunStateMachinePlugin is given."""

    rerun_mode: str
    check_for_nan_in_loss: bool
    check_for_spiky_loss: bool
    spiky_loss_factor: float

    SECTION = "rerun_state_machine"


Converter = Callable[[Any], list[str]]


def script_edits(
    owner: str,
    task: run.Script | run.Partial,
    args: ScriptArgs,
    *,
    overrides: str | None,
    converter: Converter | None,
    leave_out: Collection[str] = (),
) -> Iterator[Edit]:
    """The edits that tell ``task`` what ``args`` hold, where ``overrides`` or ``converter`` ask for it.

    Args:
        leave_out: fields that the script is given already.

    Raises:
        UnsupportedError: the task takes neither arguments nor a configuration.
    """
    if converter is None and overrides is None:
        return
    if converter is None and has_config(task):
        for name, value in args.values().items():
            yield SetTaskConfig(owner, args.SECTION, name, value)
        return
    arguments = args.overrides(leave_out) if converter is None else list(converter(args))
    if not (isinstance(task, run.Script) and task.path):
        rule = "overrides and script_args_converter_fn need a run.Script with a path, or a run.Partial with a config"
        remedy = "Leave both unset: the session is told without them."
        raise UnsupportedError("task", type(task).__name__, rule, remedy)
    if arguments:
        yield AddArguments(owner, tuple(arguments))


def require_module_level(field: str, function: Callable[..., Any] | None) -> None:
    """Raises ConfigError for a function that does not survive NeMo-Run's serialisation."""
    if function is not None and (not callable(function) or "<" in getattr(function, "__qualname__", "<")):
        rule = "must be a function at the top level of a module: NeMo-Run serialises it by name"
        raise ConfigError(field, function, rule, "Move it to a module, not a lambda or a nested function.")
