"""The configuration of the runtime, as users build it in a script and as plugins send it."""

from __future__ import annotations

import dataclasses
import math
import re
import signal
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from nemo_resiliency_plugins.errors import ConfigError

Rule = tuple[Callable[[Any], bool], str, str]


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value)


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_positive(value: Any) -> bool:
    return is_number(value) and 0 < value < math.inf


A_SWITCH: Rule = (lambda value: isinstance(value, bool), "must be True or False", "Give a bool.")
A_COUNT: Rule = (is_count, "must be a whole number, 0 or more", "Give an int such as 0 or 3.")
POSITIVE: Rule = (is_positive, "must be a finite number above 0", "Give a positive number.")
NOT_NEGATIVE: Rule = (
    lambda value: is_number(value) and 0 <= value < math.inf,
    "must be a finite number, 0 or more",
    "Give a number.",
)
AT_LEAST_ONE: Rule = (
    lambda value: is_number(value) and 1 <= value < math.inf,
    "must be a finite number, 1 or more",
    "Give such a number.",
)
A_STEP: Rule = (lambda value: is_count(value) and value > 0, "must be a whole number, 1 or more", "Give an int.")
A_PATH: Rule = (lambda value: isinstance(value, str) and value != "", "must be a path", 'Such as "/tmp/local".')


def optional(rule: Rule) -> Rule:
    accepts, text, remedy = rule
    return (lambda value: value is None or accepts(value), f"{text}, or None", remedy)


def one_of(*choices: Any) -> Rule:
    text = ", ".join(repr(choice) for choice in choices)
    return (lambda value: value in choices, f"must be one of {text}", f"Choose one of {text}.")


def validate(owner: str, config: Any, rules: dict[str, Rule]) -> None:
    """Check each field of ``config`` that ``rules`` names.

    Raises:
        ConfigError: for the first value that breaks its rule.
    """
    for name, (accepts, rule, remedy) in rules.items():
        value = getattr(config, name)
        if not accepts(value):
            raise ConfigError(f"{owner}.{name}", value, rule, remedy)


@dataclasses.dataclass(frozen=True)
class Fault:
    """One scripted fault: ``kind`` happens on ``rank`` when it begins ``step``, once per job."""

    kind: str
    rank: int
    step: int

    KINDS: ClassVar[tuple[str, ...]] = ("kill", "hang", "exception")

    def __post_init__(self) -> None:
        validate("Fault", self, {"kind": one_of(*self.KINDS), "rank": A_COUNT, "step": A_COUNT})

    @property
    def name(self) -> str:
        return f"{self.kind}-rank{self.rank}-step{self.step}"

    def __str__(self) -> str:
        return f"{self.kind}@{self.rank}:{self.step}"


@dataclasses.dataclass(frozen=True)
class FaultScript:
    """Faults to inject into a run of one's own, written as ``kill@RANK:STEP,hang@RANK:STEP``.

    ``FaultScript().kill(rank=1, step=3).hang(rank=0, step=7)``: *kill* is SIGKILL, *hang* is SIGSTOP,
    *exception* raises in the training loop.
    """

    faults: tuple[Fault, ...] = ()

    PATTERN: ClassVar[re.Pattern[str]] = re.compile(r"(\w+)@(\d+):(\d+)")

    def kill(self, *, rank: int, step: int) -> FaultScript:
        return self.add(Fault("kill", rank, step))

    def hang(self, *, rank: int, step: int) -> FaultScript:
        return self.add(Fault("hang", rank, step))

    def exception(self, *, rank: int, step: int) -> FaultScript:
        return self.add(Fault("exception", rank, step))

    def add(self, fault: Fault) -> FaultScript:
        return FaultScript((*self.faults, fault))

    def for_rank(self, rank: int) -> Iterable[Fault]:
        return (fault for fault in self.faults if fault.rank == rank)

    def __str__(self) -> str:
        return ",".join(str(fault) for fault in self.faults)

    @classmethod
    def parse(cls, text: str) -> FaultScript:
        """Read what ``str()`` of a script gives.

        Raises:
            ConfigError: for text of another form, or an unknown kind of fault.
        """
        script = cls()
        for part in filter(None, text.split(",")):
            match = cls.PATTERN.fullmatch(part.strip())
            if not match:
                raise ConfigError("fault_script", part, "must read KIND@RANK:STEP", "For example kill@1:20.")
            script = script.add(Fault(match[1], int(match[2]), int(match[3])))
        return script


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


def signal_name(value: Any) -> Any:
    """``SIGTERM`` for ``signal.SIGTERM``, 15, "TERM" and "SIGTERM"; what is no signal stays as it is."""
    if is_count(value) and value in set(signal.Signals):
        return signal.Signals(value).name
    name = f"SIG{str(value).upper().removeprefix('SIG')}"
    return name if name in signal.Signals.__members__ else value


PREEMPTION_SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2")


@dataclasses.dataclass
class PreemptionConfig:
    """What a rank does when it is told that its time is up: all ranks stop after the same step, save and leave.

    The first three fields and their defaults are those of Megatron-Bridge's ``TrainingConfig``.

    Attributes:
        exit_signal_handler: take notice of the signal.
        exit_signal: the signal that announces the end; a ``signal.Signals``, its number or its name. SIGTERM, which
            Slurm sends at a preemption whatever was asked for, counts as well.
        exit_signal_handler_for_dataloader: also for Megatron-Bridge's loader workers. Workers of a session are kept
            from the signal in any case: they serve until the rank has saved.
        grace_period_s: seconds from the signal to the end; None: unknown.
    """

    exit_signal_handler: bool = False
    exit_signal: Any = "SIGTERM"
    exit_signal_handler_for_dataloader: bool = False
    grace_period_s: float | None = None

    PLUGIN: ClassVar[str] = "preemption"
    RULES: ClassVar[dict[str, Rule]] = {
        "exit_signal_handler": A_SWITCH,
        "exit_signal": one_of(*PREEMPTION_SIGNALS),
        "exit_signal_handler_for_dataloader": A_SWITCH,
        "grace_period_s": optional(POSITIVE),
    }

    def __post_init__(self) -> None:
        self.exit_signal = signal_name(self.exit_signal)
        validate(type(self).__name__, self, self.RULES)

    @property
    def signals(self) -> tuple[str, ...]:
        """The names of the signals that are a notice."""
        return tuple(dict.fromkeys(("SIGTERM", self.exit_signal)))


def field_names(config: type) -> list[str]:
    return [field.name for field in dataclasses.fields(config)]


def changed_fields(config: Any) -> dict[str, Any]:
    """The fields of ``config`` that differ from the defaults of its class."""
    return {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(config)
        if getattr(config, field.name) != field.default
    }


@dataclasses.dataclass
class CheckpointConfig:
    """How an attached state is saved. Names up to ``non_persistent_save_interval`` are Megatron-Bridge's.

    Attributes:
        async_save: write a copy of the state while the training goes on.
        ckpt_format: the session itself writes ``torch_dist`` (torch.distributed.checkpoint) alone.
        non_persistent_local_ckpt_dir: a directory on each node's own disk, for the local tier.
        non_persistent_local_ckpt_algo: ``fully_parallel``: of what ranks hold alike, each writes a part.
        non_persistent_save_interval: steps between saves to the local tier.
        tolerated_save_failures: failed saves in a row that are warnings; a failed last save is always an error.
        drain_timeout_s: seconds to wait for a writer before it counts as dead.
        start_over: begin at step 0 when checkpoints are there and none of them can be resumed from.
    """

    async_save: bool = False
    ckpt_format: str = "torch_dist"
    non_persistent_local_ckpt_dir: str | None = None
    non_persistent_local_ckpt_algo: str = "fully_parallel"
    non_persistent_save_interval: int | None = None
    tolerated_save_failures: int = 0
    drain_timeout_s: float = 300.0
    start_over: bool = False

    PLUGIN: ClassVar[str] = "checkpoint"
    RULES: ClassVar[dict[str, Rule]] = {
        "async_save": A_SWITCH,
        "ckpt_format": one_of("torch_dist", "torch", "zarr", "fsdp_dtensor"),
        "non_persistent_local_ckpt_dir": optional(A_PATH),
        "non_persistent_local_ckpt_algo": one_of("fully_parallel", "atomic"),
        "non_persistent_save_interval": optional(A_STEP),
        "tolerated_save_failures": A_COUNT,
        "drain_timeout_s": POSITIVE,
        "start_over": A_SWITCH,
    }

    def __post_init__(self) -> None:
        validate(type(self).__name__, self, self.RULES)
        if self.async_save and self.ckpt_format != "torch_dist":
            remedy = 'Set ckpt_format="torch_dist" or async_save=False.'
            raise ConfigError("CheckpointConfig.ckpt_format", self.ckpt_format, "has no async_save", remedy)
