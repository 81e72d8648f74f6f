"""FaultTolerancePlugin: hang detection and restarts by ``ft_launcher``."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import nemo_run as run
from nemo_run.core.execution.base import Executor

from nemo_resiliency_plugins.compat import nvrx
from nemo_resiliency_plugins.config import FaultToleranceConfig
from nemo_resiliency_plugins.config.rules import (
    A_COUNT,
    A_SWITCH,
    POSITIVE,
    Rule,
    changed_fields,
    field_names,
    is_count,
    one_of,
    optional,
    validate,
)
from nemo_resiliency_plugins.contract import CHECKPOINTING, OUT_OF_SECTION, SETUP, STEP
from nemo_resiliency_plugins.errors import ConfigError, UnsupportedError
from nemo_resiliency_plugins.plugins import fault_tolerance_local, fault_tolerance_slurm, on_slurm
from nemo_resiliency_plugins.plugins.base import ResiliencyPlugin
from nemo_resiliency_plugins.plugins.edits import Edit, script_arguments
from nemo_resiliency_plugins.plugins.inprocess_arguments import refuse_megatrons_own
from nemo_resiliency_plugins.plugins.script_args import (
    MEGATRON_BRIDGE,
    FaultTolerancePluginScriptArgs,
    require_module_level,
    script_edits,
)
from nemo_resiliency_plugins.plugins.telling import without_the_other

NAME = "FaultTolerancePlugin"
CHECKPOINTING_TIMEOUT_S = 420.0
"""Saving gets at least what the feature document's own command line gives it."""

Limit = float | None
A_LIMIT_OR_INF: Rule = (
    lambda value: value is None or POSITIVE[0](value) or value == math.inf,
    "must be a number above 0, inf for no limit, or None to follow rank_heartbeat_timeout",
    "Give such a value.",
)
A_LIST_OF_PACKAGES: Rule = (
    lambda value: isinstance(value, list) and all(isinstance(each, str) and is_package(each) for each in value),
    "must be a list of names of packages",
    "Give names such as ['torch', 'megatron.core'], or [] to start no rank ahead.",
)


def is_package(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


@dataclasses.dataclass(kw_only=True)
class FaultTolerancePlugin(ResiliencyPlugin):
    """Start the task with ``ft_launcher``: ranks that hang or die are noticed and started again.

    The first six parameters and their defaults are those of Megatron-Bridge's plugin. All times are seconds.

    Attributes:
        enable_ft_package: the script's session reports what it does, so that hangs are seen.
        calc_ft_timeouts: learn tighter timeouts; they are kept beside the checkpoints for later runs.
        num_in_job_restarts: restarts of all ranks by the launcher.
        num_job_retries_on_failure: starts of the whole job after that; LocalExecutor has none.
        initial_rank_heartbeat_timeout: limit of ``setup``, of warm-up steps, and of the time until the session.
        rank_heartbeat_timeout: limit of ``step``, and of the time out of sections.
        rank_section_timeouts: limits by section that differ from those; further names are allowed, None: no limit.
        rank_out_of_section_timeout: None follows ``rank_heartbeat_timeout``, inf is no limit.
        workload_check_interval: how often a rank's monitor looks whether a limit has passed.
        monitor_interval: how often the launcher looks whether a rank has ended.
        workers_stop_timeout: how long a restart waits for ranks to honour SIGTERM before SIGKILL.
        term_timeout: how long ranks have after a signal to the launcher before SIGKILL.
        zero_code: watch a script that opens no session by the steps of its optimizers.
        overrides: ``"megatron_bridge"`` adds hydra-style overrides to the script's arguments.
        script_args_converter_fn: makes script arguments from a :class:`FaultTolerancePluginScriptArgs`.
        max_job_attempts: counted failures after which a job ends that makes progress and never finishes (Slurm).
        start_skew_s: how far apart the nodes of an attempt may start (Slurm).
        spare_nodes: how many of the executor's nodes stand by for a lost one; needs NVRx 0.6 or later (Slurm).
        prestart_imports: packages that processes load which wait to be the ranks of the next in-job restart, of what
            the ranks have loaded by their first step; without any, no process waits (Slurm).
        trains: which task of a task group trains; the others start without the launcher (Slurm).
        strict: what cannot work is an error instead of a warning, here and in the job.

    The other parameters are fields of :class:`FaultToleranceConfig`, sent to the job.

    Raises:
        ConfigError: at construction, for a value that breaks its rule.
    """

    enable_ft_package: bool = True
    calc_ft_timeouts: bool = True
    num_in_job_restarts: int = 3
    num_job_retries_on_failure: int = 2
    initial_rank_heartbeat_timeout: float | None = 1800
    rank_heartbeat_timeout: float | None = 300
    rank_section_timeouts: dict[str, Any] = dataclasses.field(default_factory=dict)
    rank_out_of_section_timeout: float | None = None
    workload_check_interval: float = 0.5
    monitor_interval: float = 0.1
    workers_stop_timeout: float = 3.0
    term_timeout: float = 60.0
    simulate_fault: bool = False
    simulated_fault_type: str = "random"
    simulated_fault_rank: int | None = None
    simulated_fault_base_delay: float = 0
    fault_script: str = ""
    warmup_steps: int = 5
    section_span_s: float = 1.0
    timeout_safety_factor: float = 5.0
    timeout_floor_s: float = 30.0
    zero_code: bool = False
    overrides: str | None = None
    script_args_converter_fn: Callable[[FaultTolerancePluginScriptArgs], list[str]] | None = None
    strict: bool = False
    max_job_attempts: int = 20
    start_skew_s: float = 600.0
    spare_nodes: int = 0
    prestart_imports: list[str] = dataclasses.field(default_factory=lambda: ["torch", "numpy", "nvidia_resiliency_ext"])
    trains: int = 0

    def __post_init__(self) -> None:
        validate(NAME, self, RULES)
        for name, limit in self.rank_section_timeouts.items():
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", str(name)):
                raise ConfigError(f"{NAME}.rank_section_timeouts", name, "section names are identifiers", "Rename it.")
            if name == OUT_OF_SECTION:
                remedy = "Use rank_out_of_section_timeout."
                raise ConfigError(f"{NAME}.rank_section_timeouts", name, "is not a section", remedy)
            if limit is not None and not POSITIVE[0](limit):
                rule = f"the limit of {name!r} must be a finite number above 0, or None for no limit"
                raise ConfigError(f"{NAME}.rank_section_timeouts", limit, rule, "Give a positive number.")
        require_module_level(f"{NAME}.script_args_converter_fn", self.script_args_converter_fn)
        self.job_config()

    def plan(self, task: run.Partial | run.Script, executor: Executor) -> tuple[Edit, ...]:
        refuse_megatrons_own(NAME, script_arguments(task))
        told = self._script_edits(task) if on_slurm.is_training(task, executor, self.trains) else ()
        arguments = (*without_the_other(NAME, self, NEEDS), *told)
        if isinstance(executor, run.SlurmExecutor):
            return (*arguments, *fault_tolerance_slurm.plan(self, task, executor))
        if isinstance(executor, run.LocalExecutor):
            return (*arguments, *fault_tolerance_local.plan(self, task, executor))
        rule = "is not supported; run.SlurmExecutor and run.LocalExecutor are"
        remedy = "On other systems start ft_launcher yourself and open a session in the script, as the README shows."
        raise UnsupportedError("executor", type(executor).__name__, rule, remedy)

    def section_timeouts(self) -> dict[str, Limit]:
        """The limit of each section in seconds; None: no limit."""
        usual = self.rank_heartbeat_timeout
        defaults: dict[str, Limit] = {
            SETUP: self.initial_rank_heartbeat_timeout,
            STEP: usual,
            CHECKPOINTING: None if usual is None else max(CHECKPOINTING_TIMEOUT_S, usual),
        }
        limits = {**defaults, **self.rank_section_timeouts}
        return limits if self.enable_ft_package else dict.fromkeys(limits)

    def out_of_section_timeout(self) -> Limit:
        """The limit of the time in which no section is open."""
        given = self.rank_out_of_section_timeout
        limit = self.rank_heartbeat_timeout if given is None else given
        return None if limit in (None, math.inf) or not self.enable_ft_package else limit

    def job_config(self) -> FaultToleranceConfig:
        """What the session in the job is told."""
        shared = {name: getattr(self, name) for name in field_names(FaultToleranceConfig) if hasattr(self, name)}
        return FaultToleranceConfig(**shared, startup_timeout_s=self.section_timeouts()[SETUP])

    def told_to_the_job(self) -> dict[str, Any]:
        """The fields of :meth:`job_config` that the job gets: those that were chosen, and the two main switches.

        Fields left at their default stay open for a config that the script builds itself.
        """
        config = self.job_config()
        switches = {"enable_ft_package": self.enable_ft_package, "calc_ft_timeouts": self.calc_ft_timeouts}
        return {**switches, **changed_fields(config)}

    def monitor_settings(self) -> dict[str, Any]:
        """The content of the file that tells the rank monitors their limits."""
        return nvrx.monitor_settings(
            section_timeouts=self.section_timeouts(),
            out_of_section_timeout=self.out_of_section_timeout(),
            workload_check_interval=self.workload_check_interval,
        )

    def _script_edits(self, task: run.Partial | run.Script) -> Iterator[Edit]:
        args = FaultTolerancePluginScriptArgs(self.enable_ft_package, self.calc_ft_timeouts)
        return script_edits(NAME, task, args, overrides=self.overrides, converter=self.script_args_converter_fn)


NEEDS: dict[str, tuple[str, Any]] = {
    **{name: ("simulate_fault", True) for name in field_names(FaultToleranceConfig) if name.startswith("simulated_")},
    "timeout_safety_factor": ("calc_ft_timeouts", True),
    "timeout_floor_s": ("calc_ft_timeouts", True),
}
"""By field that does nothing alone: which other field must have which value."""
RULES: dict[str, Rule] = {
    **{name: rule for name, rule in FaultToleranceConfig.RULES.items() if name != "startup_timeout_s"},
    "num_in_job_restarts": A_COUNT,
    "num_job_retries_on_failure": A_COUNT,
    "initial_rank_heartbeat_timeout": optional(POSITIVE),
    "rank_heartbeat_timeout": optional(POSITIVE),
    "rank_out_of_section_timeout": A_LIMIT_OR_INF,
    "rank_section_timeouts": (lambda value: isinstance(value, dict), "must be a dict", "Give limits by section name."),
    "workload_check_interval": POSITIVE,
    "monitor_interval": POSITIVE,
    "workers_stop_timeout": POSITIVE,
    "term_timeout": POSITIVE,
    "overrides": one_of(None, MEGATRON_BRIDGE),
    "strict": A_SWITCH,
    "max_job_attempts": (lambda value: is_count(value) and value > 0, "must be a whole number above 0", "Give an int."),
    "start_skew_s": POSITIVE,
    "spare_nodes": A_COUNT,
    "prestart_imports": A_LIST_OF_PACKAGES,
    "trains": A_COUNT,
}
