"""RerunStateMachinePlugin: suspect results are tried again, on the same device and if need be on another node."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import nemo_run as run
from nemo_run.core.execution.base import Executor

from nemo_resiliency_plugins.config import RerunStateMachineConfig
from nemo_resiliency_plugins.config.rerun import NOTHING, STATS, VALIDATE
from nemo_resiliency_plugins.plugins.edits import Edit, Note
from nemo_resiliency_plugins.plugins.script_args import MEGATRON_BRIDGE, RerunStateMachinePluginScriptArgs
from nemo_resiliency_plugins.plugins.session_plugin import EXCLUSIONS, MAX_NODE_EXCLUSIONS, SessionPlugin

NOWHERE_ELSE = "a suspect result that comes again ends the run with code 16: LocalExecutor has no other node"

ALPHA = (
    "Megatron-Bridge's own re-run state machine is alpha: rely on check_for_nan_in_loss, not on its re-runs. "
    "In a loop of your own, session.checked does them"
)


@dataclasses.dataclass(kw_only=True)
class RerunStateMachinePlugin(SessionPlugin):
    """Run a step with a suspect result again; what is suspect once more is tried on another node (Slurm).

    The first four parameters are those of Megatron-Bridge's ``RerunStateMachineConfig``, with its defaults except for
    ``rerun_mode``: who adds the plugin wants it.

    Attributes:
        rerun_mode: ``"validate_results"``, ``"report_determinism_stats"`` (steps run twice, and the differences are
            reported) or ``"disabled"``.
        check_for_nan_in_loss: NaN or Inf in the loss is suspect.
        check_for_spiky_loss: a loss far above those before it is suspect.
        spiky_loss_factor: so many times the largest magnitude in the window makes a spike.
        check_for_nan_in_gradients: NaN or Inf in the gradients is suspect.
        spike_warmup_steps: steps of the training that are neither checked for spikes nor part of the window.
        spike_window: steps that the window spans.
        tolerance: relative difference up to which two results are the same; 0 is bit for bit.
        accept: what is trained on although it came again after a restart: ``"nothing"``, ``"spikes"`` or
            ``"everything"``.
        determinism_interval: of so many steps one runs twice, under ``"report_determinism_stats"``.
        max_node_exclusions: nodes that a job leaves; after that it runs again where it is (Slurm).
        overrides, script_args_converter_fn, trains, strict: see :class:`SessionPlugin`.

    Raises:
        ConfigError: at construction, for a value that breaks its rule.
    """

    rerun_mode: str = VALIDATE
    check_for_nan_in_loss: bool = True
    check_for_spiky_loss: bool = False
    spiky_loss_factor: float = 10.0
    check_for_nan_in_gradients: bool = True
    spike_warmup_steps: int = 100
    spike_window: int = 100
    tolerance: float = 0.0
    accept: str = NOTHING
    determinism_interval: int = 1
    max_node_exclusions: int = MAX_NODE_EXCLUSIONS

    CONFIG = RerunStateMachineConfig
    SCRIPT_ARGS = RerunStateMachinePluginScriptArgs
    ALWAYS_TOLD = ("rerun_mode",)
    POLICY_FIELDS = EXCLUSIONS
    NEEDS = {
        "spiky_loss_factor": ("check_for_spiky_loss", True),
        "spike_warmup_steps": ("check_for_spiky_loss", True),
        "spike_window": ("check_for_spiky_loss", True),
        "accept": ("rerun_mode", VALIDATE),
        "determinism_interval": ("rerun_mode", STATS),
        "max_node_exclusions": ("rerun_mode", VALIDATE),
    }

    def notes(self, task: run.Partial | run.Script, executor: Executor) -> Iterator[Edit]:
        if self.rerun_mode == VALIDATE and isinstance(executor, run.LocalExecutor):
            yield Note(self.name, NOWHERE_ELSE)
        if self.rerun_mode == VALIDATE and self.overrides == MEGATRON_BRIDGE:
            yield Note(self.name, ALPHA, warn=True)
