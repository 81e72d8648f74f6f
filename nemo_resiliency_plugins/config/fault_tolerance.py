"""Hang detection and simulated faults."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from nemo_resiliency_plugins.config.fault_script import FaultScript
from nemo_resiliency_plugins.config.rules import (
    A_COUNT,
    A_SWITCH,
    AT_LEAST_ONE,
    NOT_NEGATIVE,
    POSITIVE,
    Rule,
    changed_fields,
    one_of,
    optional,
    validate,
)


@dataclasses.dataclass
class FaultToleranceConfig:
    """Hang detection and fault simulation in the job, under ``ft_launcher``.

    The first six fields and their defaults are those of Megatron-Bridge's class of the same name.

    Attributes:
        enable_ft_package: report sections to NVRx's rank monitor, which kills a rank that hangs.
        calc_ft_timeouts: learn tighter section timeouts and keep them in ``ft_state.json``.
        simulate_fault: inject one fault into the first start of the job.
        simulated_fault_type: ``rank_hung`` (SIGSTOP), ``rank_killed`` (SIGKILL) or ``random``.
        simulated_fault_rank: the rank to hit, or None for a random one.
        simulated_fault_base_delay: seconds from the first step to the fault.
        fault_script: faults at given steps, see :class:`FaultScript`.
        warmup_steps: steps after every start that are watched with the limit of ``setup``.
        section_span_s: seconds that one ``step`` section may span before a new one is opened.
        timeout_safety_factor: a learned limit is the longest time seen, times this.
        timeout_floor_s: seconds below which no learned limit goes.
        startup_timeout_s: seconds that a rank may take from its start to the session; None: no limit.
        zero_code: watch a script that opens no session by the steps of its optimizers; the launch stub must run it.
    """

    enable_ft_package: bool = False
    calc_ft_timeouts: bool = False
    simulate_fault: bool = False
    simulated_fault_type: str = "random"
    simulated_fault_rank: int | None = None
    simulated_fault_base_delay: float = 0
    fault_script: str = ""
    warmup_steps: int = 5
    section_span_s: float = 1.0
    timeout_safety_factor: float = 5.0
    timeout_floor_s: float = 30.0
    startup_timeout_s: float | None = 1800.0
    zero_code: bool = False

    PLUGIN: ClassVar[str] = "fault_tolerance"
    RULES: ClassVar[dict[str, Rule]] = {
        "enable_ft_package": A_SWITCH,
        "calc_ft_timeouts": A_SWITCH,
        "simulate_fault": A_SWITCH,
        "simulated_fault_type": one_of("rank_hung", "rank_killed", "random"),
        "simulated_fault_rank": optional(A_COUNT),
        "simulated_fault_base_delay": NOT_NEGATIVE,
        "warmup_steps": A_COUNT,
        "section_span_s": NOT_NEGATIVE,
        "timeout_safety_factor": AT_LEAST_ONE,
        "timeout_floor_s": POSITIVE,
        "startup_timeout_s": optional(POSITIVE),
        "zero_code": A_SWITCH,
    }

    def __post_init__(self) -> None:
        self.fault_script = str(FaultScript.parse(str(self.fault_script)))
        validate(type(self).__name__, self, self.RULES)

    def without_effect(self) -> dict[str, Any]:
        """What was chosen for a simulated fault that ``simulate_fault`` does not ask for.

        No error: one layer may describe the fault and another one switch it on, or off.
        """
        chosen = {name: value for name, value in changed_fields(self).items() if name.startswith("simulated_fault_")}
        return {} if self.simulate_fault else chosen
