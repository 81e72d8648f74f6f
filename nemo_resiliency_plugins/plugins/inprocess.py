"""InProcessRestartPlugin: the ranks of a Slurm job start again in their processes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import nemo_run as run
from nemo_run.core.execution.base import Executor

from nemo_resiliency_plugins.config import InProcessRestartConfig
from nemo_resiliency_plugins.config.rules import A_COUNT, A_SWITCH, Rule, changed_fields, field_names, validate
from nemo_resiliency_plugins.contract import Kind
from nemo_resiliency_plugins.errors import ConfigError, ConflictError, UnsupportedError
from nemo_resiliency_plugins.plugins import on_slurm
from nemo_resiliency_plugins.plugins.base import ResiliencyPlugin
from nemo_resiliency_plugins.plugins.edits import AddSrunArguments, Edit, SetEnv, SetField
from nemo_resiliency_plugins.plugins.launcher import named
from nemo_resiliency_plugins.plugins.node_launcher import NodeLauncher
from nemo_resiliency_plugins.plugins.slurm_request import ranks_per_node
from nemo_resiliency_plugins.plugins.srun_edits import WaitForTheLast
from nemo_resiliency_plugins.slurm.inprocess import VARIABLES

NAME = "InProcessRestartPlugin"
SURVIVE_A_LOST_RANK = ("--no-kill", "--kill-on-bad-exit=0")
"""NeMo-Run 0.11 starts every step with ``--kill-on-bad-exit=1``; of two, srun (22.05) takes the last."""


@dataclasses.dataclass(kw_only=True)
class InProcessRestartPlugin(ResiliencyPlugin):
    """Let ``runtime.inprocess`` in the training script restart its function, with ``srun`` as the only launcher.

    ``srun`` starts one task a rank and leaves the others alone when one dies. The other fields are those of
    :class:`InProcessRestartConfig`, times are seconds.

    Attributes:
        enabled: restart in the process.
        active_world_size: ranks that train, the others are hot spares; None: all of them.
        granularity: ``"node"``: with a rank its whole node leaves the training; ``"rank"``: the rank alone.
        trains: which task of a task group trains; the others start without the node script.
        strict: what cannot work is an error instead of a warning, here and in the job.

    Raises:
        ConfigError: at construction, for a value that breaks its rule.
    """

    enabled: bool = True
    active_world_size: int | None = None
    granularity: str = "node"
    max_iterations: int | None = None
    soft_timeout: float = 60.0
    hard_timeout: float = 90.0
    heartbeat_interval: float = 30.0
    heartbeat_timeout: float = 60.0
    barrier_timeout: float = 120.0
    completion_timeout: float = 120.0
    empty_cuda_cache: bool = True
    max_rank_faults: int | None = None
    monitor_process_logdir: str | None = None
    monitor_thread_interval: float = 1.0
    monitor_process_interval: float = 1.0
    progress_watchdog_interval: float = 1.0
    last_call_wait: float = 1.0
    termination_grace_time: float = 1.0
    trains: int = 0
    strict: bool = False

    def __post_init__(self) -> None:
        validate(NAME, self, RULES)
        try:
            self.job_config()
        except ConfigError as error:
            field = f"{NAME}.{error.field.rpartition('.')[2]}"
            raise ConfigError(field, error.value, error.rule, error.remedy) from None

    def job_config(self) -> InProcessRestartConfig:
        """What ``runtime.inprocess`` in the job is told."""
        names = field_names(InProcessRestartConfig)
        return InProcessRestartConfig(**{name: getattr(self, name) for name in names})

    def plan(self, task: run.Partial | run.Script, executor: Executor) -> tuple[Edit, ...]:
        if not isinstance(executor, run.SlurmExecutor):
            rule = (
                "is not supported; run.SlurmExecutor is. LocalExecutor starts ranks by torchrun, which ends all of them"
            )
            remedy = "Call runtime.inprocess with a config in the script; exceptions are survived under torchrun too."
            raise UnsupportedError("executor", type(executor).__name__, f"{rule} when one dies", remedy)
        return tuple(self._on_slurm(task, executor))

    def _on_slurm(self, task: run.Partial | run.Script, executor: run.SlurmExecutor) -> Iterator[Edit]:
        refuse_another_launcher(executor)
        claims = {f"config.{InProcessRestartConfig.PLUGIN}": {"enabled": self.enabled, **self._told()}}
        yield from on_slurm.plan(
            NAME, task, executor, claims=claims, trains=self.trains, strict=self.strict, kind=Kind.RANK
        )
        self._refuse_active_ranks(ranks_per_node(executor, self.trains), executor.nodes)
        for name, value in VARIABLES.items():
            yield SetEnv(NAME, name, value, firm=True)
        yield SetField(NAME, "additional_parameters", {**(executor.additional_parameters or {}), "no_kill": True})
        yield AddSrunArguments(NAME, SURVIVE_A_LOST_RANK, self.trains)
        yield WaitForTheLast(NAME, 0, self.trains)

    def _told(self) -> dict[str, Any]:
        return changed_fields(self.job_config())

    def _refuse_active_ranks(self, per_node: int, nodes: int) -> None:
        """Raises ConfigError: so many ranks cannot train there."""
        active, world_size = self.active_world_size, per_node * nodes
        if active is None:
            return
        if active > world_size:
            rule = f"is more than the {world_size} ranks of {nodes} nodes"
            raise ConfigError(f"{NAME}.active_world_size", active, rule, "Ask for more nodes, or lower it.")
        if self.granularity == "node" and active % per_node:
            rule = f"must be a multiple of the {per_node} ranks of a node, because ranks leave node by node"
            raise ConfigError(f"{NAME}.active_world_size", active, rule, 'Change it, or set granularity="rank".')


def refuse_another_launcher(executor: run.SlurmExecutor) -> None:
    """Raises ConflictError: a launcher between ``srun`` and the ranks ends all of them when one dies."""
    present = named(executor.launcher)
    if isinstance(present, NodeLauncher):
        other = present.kind if present.kind != Kind.RANK.value else None
    else:
        other = type(present).__name__ if isinstance(present, (run.Torchrun, run.FaultTolerance)) else None
    if other is not None:
        rule = "in-process restart needs srun itself to start the ranks: such a launcher ends all when one dies"
        remedy = "Leave executor.launcher unset, and leave FaultTolerancePlugin out"
        raise ConflictError("executor.launcher", other, rule, remedy)


RULES: dict[str, Rule] = {"trains": A_COUNT, "strict": A_SWITCH}
