"""Checks of what a step computes, and what follows when a result is suspect."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

from nemo_resiliency_plugins.config.rules import (
    A_COUNT,
    A_STEP,
    A_SWITCH,
    NOT_NEGATIVE,
    Rule,
    is_number,
    one_of,
    validate,
)

DISABLED, VALIDATE, STATS = "disabled", "validate_results", "report_determinism_stats"
NOTHING, SPIKES, EVERYTHING = "nothing", "spikes", "everything"

A_FACTOR: Rule = (
    lambda value: is_number(value) and 1 < value < math.inf,
    "must be a finite number above 1",
    "Such as 10.",
)


@dataclasses.dataclass
class RerunStateMachineConfig:
    """Which results of a step are suspect, and what the session does about them.

    The first four fields and their defaults are those of Megatron-Bridge's class of the same name.

    Attributes:
        rerun_mode: ``"disabled"``; ``"validate_results"``: a step with a suspect result runs again;
            ``"report_determinism_stats"``: steps run twice, and the differences are reported.
        check_for_nan_in_loss: NaN or Inf in the loss is suspect.
        check_for_spiky_loss: a loss far above those before it is suspect.
        spiky_loss_factor: so many times the largest magnitude in the window makes a spike.
        check_for_nan_in_gradients: NaN or Inf in the gradients is suspect.
        spike_warmup_steps: steps of the training that are neither checked for spikes nor part of the window.
        spike_window: steps that the window spans.
        tolerance: relative difference up to which two results are the same; 0 is bit for bit.
        accept: what is trained on although it came out the same on another node: ``"nothing"``, ``"spikes"`` or
            ``"everything"``.
        determinism_interval: of so many steps one runs twice, under ``"report_determinism_stats"``.
    """

    rerun_mode: str = DISABLED
    check_for_nan_in_loss: bool = True
    check_for_spiky_loss: bool = False
    spiky_loss_factor: float = 10.0
    check_for_nan_in_gradients: bool = True
    spike_warmup_steps: int = 100
    spike_window: int = 100
    tolerance: float = 0.0
    accept: str = NOTHING
    determinism_interval: int = 1

    PLUGIN: ClassVar[str] = "rerun_state_machine"
    RULES: ClassVar[dict[str, Rule]] = {
        "rerun_mode": one_of(DISABLED, VALIDATE, STATS),
        "check_for_nan_in_loss": A_SWITCH,
        "check_for_spiky_loss": A_SWITCH,
        "spiky_loss_factor": A_FACTOR,
        "check_for_nan_in_gradients": A_SWITCH,
        "spike_warmup_steps": A_COUNT,
        "spike_window": A_STEP,
        "tolerance": NOT_NEGATIVE,
        "accept": one_of(NOTHING, SPIKES, EVERYTHING),
        "determinism_interval": A_STEP,
    }

    def __post_init__(self) -> None:
        validate(type(self).__name__, self, self.RULES)
