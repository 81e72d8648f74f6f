"""PreemptionPlugin: a job that is told that its time is up saves, leaves, and comes back."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import nemo_run as run
from nemo_run.core.execution.base import Executor

from nemo_resiliency_plugins.config import PreemptionConfig
from nemo_resiliency_plugins.config.preemption import PREEMPTION_SIGNALS, signal_name
from nemo_resiliency_plugins.config.rules import (
    A_COUNT,
    A_SWITCH,
    POSITIVE,
    Rule,
    changed_fields,
    is_count,
    one_of,
    optional,
    validate,
)
from nemo_resiliency_plugins.errors import ConfigError, ConflictError, UnsupportedError
from nemo_resiliency_plugins.plugins import on_slurm
from nemo_resiliency_plugins.plugins.base import ResiliencyPlugin
from nemo_resiliency_plugins.plugins.edits import Edit, Note, SetField, script_arguments
from nemo_resiliency_plugins.plugins.inprocess_arguments import refuse_megatrons_own
from nemo_resiliency_plugins.plugins.script_args import (
    MEGATRON_BRIDGE,
    PreemptionPluginScriptArgs,
    require_module_level,
    script_edits,
)
from nemo_resiliency_plugins.plugins.srun_edits import WaitForTheLast
from nemo_resiliency_plugins.plugins.telling import by_variables, without_effect, without_the_other
from nemo_resiliency_plugins.slurm.durations import seconds

NAME = "PreemptionPlugin"
STEPS, BATCH = "steps", "batch"
SLURM_ONLY = ("scope", "max_job_attempts", "trains")
NEMO_RUN_WAIT_S = 60
"""NeMo-Run 0.11 starts every step with ``srun --wait=60``: seconds from the first task's end to the last one's."""
MAX_LEAD_S, MAX_JOB_ATTEMPTS = 65535, 20
NCCL_USES_USR1 = "SIGUSR1 is caught by NCCL, so that the ranks may never see it. Use TERM or USR2"


@dataclasses.dataclass(kw_only=True)
class PreemptionPlugin(ResiliencyPlugin):
    """Have Slurm announce the end of a job, so that all ranks stop after the same step, save, and are requeued.

    The first three parameters and their defaults are those of Megatron-Bridge's plugin. A preemption is never counted
    as a failure. SIGTERM, which Slurm sends at a preemption whatever was asked for, is noticed as well.

    Attributes:
        preempt_time: seconds before the time limit at which Slurm sends the signal. It may come a minute early.
        enable_exit_handler: the script's session takes notice of the signal.
        enable_exit_handler_for_data_loader: passed on to Megatron-Bridge. A session keeps its loader workers in any
            case: they serve until the rank has saved.
        signal: TERM, USR2, INT, HUP or USR1.
        scope: ``"steps"``: Slurm signals the job's steps; ``"batch"``: the batch shell, which passes it on.
        grace_period_s: seconds that the site leaves a preempted job; None: ``preempt_time``.
        overrides: ``"megatron_bridge"`` adds hydra-style overrides to the script's arguments.
        script_args_converter_fn: makes script arguments from a :class:`PreemptionPluginScriptArgs`.
        max_job_attempts: starts of a job whose progress nobody knows: a script without a session (Slurm).
        trains: which task of a task group trains; the others start without the node script (Slurm).
        strict: what cannot work is an error instead of a warning, here and in the job.

    Raises:
        ConfigError: at construction, for a value that breaks its rule.
    """

    preempt_time: int = 60
    enable_exit_handler: bool = True
    enable_exit_handler_for_data_loader: bool = False
    signal: Any = "TERM"
    scope: str = STEPS
    grace_period_s: float | None = None
    overrides: str | None = None
    script_args_converter_fn: Callable[[PreemptionPluginScriptArgs], list[str]] | None = None
    max_job_attempts: int = MAX_JOB_ATTEMPTS
    trains: int = 0
    strict: bool = False

    def __post_init__(self) -> None:
        self.signal = str(signal_name(self.signal)).removeprefix("SIG")
        validate(NAME, self, RULES)
        require_module_level(f"{NAME}.script_args_converter_fn", self.script_args_converter_fn)

    @property
    def directive(self) -> str:
        """What Slurm is asked for, in the spelling of ``sbatch --signal``."""
        return f"{'B:' if self.scope == BATCH else ''}{self.signal}@{self.preempt_time}"

    @property
    def grace_s(self) -> float:
        return self.preempt_time if self.grace_period_s is None else self.grace_period_s

    def job_config(self) -> PreemptionConfig:
        """What the session in the job is told."""
        return PreemptionConfig(
            exit_signal_handler=self.enable_exit_handler,
            exit_signal=self.signal,
            exit_signal_handler_for_dataloader=self.enable_exit_handler_for_data_loader,
            grace_period_s=self.grace_s,
        )

    def told_to_the_job(self) -> dict[str, Any]:
        """The fields of :meth:`job_config` that the job gets; the others stay open for the script's own config."""
        return {"exit_signal_handler": self.enable_exit_handler, **changed_fields(self.job_config())}

    def plan(self, task: run.Partial | run.Script, executor: Executor) -> tuple[Edit, ...]:
        refuse_megatrons_own(NAME, script_arguments(task))
        told = self._script_edits(task) if on_slurm.is_training(task, executor, self.trains) else ()
        arguments = (*self._without_effect(), *told)
        notes = (Note(NAME, NCCL_USES_USR1, warn=True),) if self.signal == "USR1" else ()
        if isinstance(executor, run.SlurmExecutor):
            return (*arguments, *notes, *self._on_slurm(task, executor))
        if isinstance(executor, run.LocalExecutor):
            return (*arguments, *notes, *self._on_local())
        rule = "is not supported; run.SlurmExecutor and run.LocalExecutor are"
        remedy = "On other systems give session() a PreemptionConfig in the script."
        raise UnsupportedError("executor", type(executor).__name__, rule, remedy)

    def _on_slurm(self, task: run.Partial | run.Script, executor: run.SlurmExecutor) -> Iterator[Edit]:
        yield from on_slurm.plan(NAME, task, executor, claims=self._claims(), trains=self.trains, strict=self.strict)
        self._refuse_what_cannot_work(executor)
        yield SetField(NAME, "signal", self.directive)
        if self.grace_s > NEMO_RUN_WAIT_S:
            yield WaitForTheLast(NAME, round(self.grace_s), self.trains)
        if executor.run_as_group and self.grace_s > executor.monitor_group_job_wait_time:
            # Seconds from the end of one task of a group to the SIGKILL of the others.
            yield SetField(NAME, "monitor_group_job_wait_time", math.ceil(self.grace_s))

    def _claims(self) -> dict[str, Any]:
        """Fields and entries of the node launcher."""
        return {
            f"config.{PreemptionConfig.PLUGIN}": self.told_to_the_job(),
            **({"policy.batch_signal": self.signal} if self.scope == BATCH else {}),
            **({"policy.max_attempts": self.max_job_attempts} if self.max_job_attempts != MAX_JOB_ATTEMPTS else {}),
        }

    def _refuse_what_cannot_work(self, executor: run.SlurmExecutor) -> None:
        # NeMo-Run 0.11 lets these win over the executor's fields.
        wins = executor.additional_parameters or {}
        asked = {"signal": executor.signal} if executor.signal is not None else {}
        asked |= {"additional_parameters['signal']": wins["signal"]} if "signal" in wins else {}
        for field, given in asked.items():
            if _normal(str(given)) != _normal(self.directive):
                rule = f"{NAME} wants {self.directive!r}"
                remedy = f"Give the plugin the same signal, preempt_time and scope, or leave executor.{field} unset"
                raise ConflictError(f"executor.{field}", given, rule, remedy)
        limit = wins.get("time", executor.time)
        limit_s = seconds(str(limit))
        if limit_s is not None and self.preempt_time >= limit_s:
            rule = f"must be shorter than the time limit {limit}"
            raise ConfigError(f"{NAME}.preempt_time", self.preempt_time, rule, "Give seconds, or a longer limit.")

    def _on_local(self) -> Iterator[Edit]:
        yield from by_variables(NAME, PreemptionConfig.PLUGIN, self.told_to_the_job(), strict=self.strict)
        yield from without_effect(NAME, self, SLURM_ONLY)
        yield Note(
            NAME, "LocalExecutor announces no end and starts nothing again: the ranks heed signals that you send"
        )

    def _without_effect(self) -> Iterator[Edit]:
        if self.script_args_converter_fn is None:
            yield from without_the_other(NAME, self, NEEDS)

    def _script_edits(self, task: run.Partial | run.Script) -> Iterator[Edit]:
        args = PreemptionPluginScriptArgs(self.enable_exit_handler, self.enable_exit_handler_for_data_loader)
        return script_edits(NAME, task, args, overrides=self.overrides, converter=self.script_args_converter_fn)


def _normal(directive: str) -> str:
    """``SIGTERM@60``, ``15@60`` and ``term@60`` are one request."""
    scope, _, rest = directive.rpartition(":")
    name, _, lead = rest.partition("@")
    return f"{scope.upper()}:{signal_name(int(name) if name.isdigit() else name)}@{lead or NEMO_RUN_WAIT_S}"


NEEDS: dict[str, tuple[str, Any]] = {"enable_exit_handler_for_data_loader": ("overrides", MEGATRON_BRIDGE)}
"""By field that does nothing alone: which other field must have which value."""
RULES: dict[str, Rule] = {
    "preempt_time": (
        lambda value: is_count(value) and 0 < value <= MAX_LEAD_S,
        f"must be a whole number of seconds from 1 to {MAX_LEAD_S}",
        "Give seconds, such as 60.",
    ),
    "enable_exit_handler": A_SWITCH,
    "enable_exit_handler_for_data_loader": A_SWITCH,
    "signal": one_of(*(name.removeprefix("SIG") for name in PREEMPTION_SIGNALS)),
    "scope": one_of(STEPS, BATCH),
    "grace_period_s": optional(POSITIVE),
    "overrides": one_of(None, MEGATRON_BRIDGE),
    "max_job_attempts": (lambda value: is_count(value) and value > 0, "must be a whole number above 0", "Give an int."),
    "trains": A_COUNT,
    "strict": A_SWITCH,
}
