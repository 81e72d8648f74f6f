"""Result validation as the session knows it: off, checking each step, or comparing steps that run twice."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_resiliency_plugins.config import RerunStateMachineConfig
from nemo_resiliency_plugins.config.rerun import DISABLED, VALIDATE
from nemo_resiliency_plugins.errors import ConfigError
from nemo_resiliency_plugins.runtime.agreement import Ranks
from nemo_resiliency_plugins.runtime.events import EventLog
from nemo_resiliency_plugins.runtime.identity import Identity
from nemo_resiliency_plugins.runtime.log import line, logger
from nemo_resiliency_plugins.runtime.not_working import report as not_working
from nemo_resiliency_plugins.runtime.rerun.determinism import Determinism
from nemo_resiliency_plugins.runtime.rerun.replay import ForwardBackward, Passes
from nemo_resiliency_plugins.runtime.rerun.validation import Leave, Validation

if TYPE_CHECKING:
    import torch

ASKED = {VALIDATE: "result validation was asked for, but nothing is checked"}
ASKED_STATS = "determinism stats were asked for, but no step runs twice"


class NoResults:
    """Stands in where results are not looked at."""

    keeps_state = False
    """Whether there is something to keep in a checkpoint."""

    def attached(self, objects: Sequence[Any], ranks: Ranks, directory: Path | None) -> None:
        """Collective. ``objects``: those of the state; ``directory``: where a start leaves a note for the next."""

    def run(
        self, step: int | None, forward_backward: ForwardBackward, micro_batches: Sequence[Any], leave: Leave
    ) -> Any:
        """Collective. The loss of the step, the sum over its micro-batches.

        Raises:
            ConfigError: the function gives no loss, or no step is running.
        """
        return Passes().run(forward_backward, micro_batches).loss

    def step_ends(self) -> None:
        """This rank has done its step."""

    def loop_ends(self) -> None:
        """The loop has come to its end."""

    def close(self) -> None:
        """Look no more; no collective."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """What a checkpoint has kept; empty where it was saved without."""

    def problem(self) -> str | None:
        """Why the state that was just loaded cannot be trained on."""
        return None


def start(config: RerunStateMachineConfig, identity: Identity, events: EventLog, *, strict: bool) -> NoResults:
    return NoResults() if config.rerun_mode == DISABLED else Results(config, identity, events, strict=strict)


class Results(NoResults):
    """Works from :meth:`attached` on."""

    def __init__(self, config: RerunStateMachineConfig, identity: Identity, events: EventLog, *, strict: bool) -> None:
        self._config, self._identity, self._events, self._strict = config, identity, events, strict
        self._validation: Validation | None = None
        self._determinism: Determinism | None = None
        self._models: Sequence[torch.nn.Module] = ()
        self._optimizers: Sequence[torch.optim.Optimizer] = ()
        self._was_called = self._said = False
        if config.rerun_mode == VALIDATE and not _checks_anything(config):
            self._say("all checks are off", "Switch one on, or leave the mode disabled")

    @property
    def keeps_state(self) -> bool:  # type: ignore[override]
        return self._config.rerun_mode == VALIDATE

    def attached(self, objects: Sequence[Any], ranks: Ranks, directory: Path | None) -> None:
        import torch

        models = self._models = [each for each in objects if isinstance(each, torch.nn.Module)]
        self._optimizers = [each for each in objects if isinstance(each, torch.optim.Optimizer)]
        if any(isinstance(each, torch.amp.GradScaler) and each.is_enabled() for each in objects):
            self._leave_gradients_to_the_scaler()
        config, events, node = self._config, self._events, self._identity.node
        if not models:
            self._say("no module was attached, so no step can be repeated", "Give attach() the model in state=")
        elif config.rerun_mode != VALIDATE:
            self._determinism = Determinism(models, ranks, events, interval=config.determinism_interval)
        elif _checks_anything(config):
            self._validation = Validation(
                config, models, ranks, node=node, directory=directory, events=events, problem_of_state=self.problem
            )

    def run(
        self, step: int | None, forward_backward: ForwardBackward, micro_batches: Sequence[Any], leave: Leave
    ) -> Any:
        _refuse_a_lambda(forward_backward)
        if step is None:
            rule = "belongs into a step of session.steps()"
            raise ConfigError("session.checked", "called outside the loop", rule, "Call it in the loop.")
        self._was_called = True
        if self._validation is not None:
            return self._validation.run(step, forward_backward, micro_batches, leave)
        if self._determinism is not None:
            return self._determinism.run(step, forward_backward, micro_batches)
        return super().run(step, forward_backward, micro_batches, leave)

    def step_ends(self) -> None:
        if not self._was_called:
            self._say(
                "a step has ended without checked()", "Call session.checked(forward_backward, batch) in each step"
            )
        self._was_called = False

    def loop_ends(self) -> None:
        if self._determinism is not None:
            self._determinism.loop_ends()

    def close(self) -> None:
        if self._validation is not None:
            self._validation.close()

    def state_dict(self) -> dict[str, Any]:
        return {} if self._validation is None else self._validation.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self._validation is not None:
            self._validation.load_state_dict(state)

    def problem(self) -> str | None:
        if self._validation is None:
            return None
        named = (item for model in self._models for item in model.named_parameters())
        bad = next((name for name, value in named if not _is_finite(value)), None)
        states = (
            value for optimizer in self._optimizers for each in optimizer.state.values() for value in each.values()
        )
        if bad is None and all(_is_finite(value) for value in states):
            return None
        return f"NaN or Inf in {'the state of the optimizer' if bad is None else bad}"

    def _leave_gradients_to_the_scaler(self) -> None:
        if self._config.rerun_mode == VALIDATE and self._config.check_for_nan_in_gradients:
            self._config = dataclasses.replace(self._config, check_for_nan_in_gradients=False)
            if self._identity.rank == 0:
                text = "gradients are not checked: the GradScaler finds its scale by making Inf, and skips such steps"
                logger().info(line(0, text))

    def _say(self, reason: str, remedy: str) -> None:
        if self._said:
            return
        self._said = True
        what = ASKED.get(self._config.rerun_mode, ASKED_STATS)
        rank, events, strict = self._identity.rank, self._events, self._strict
        not_working(what, reason, remedy, feature="result validation", rank=rank, events=events, strict=strict)


def _checks_anything(config: RerunStateMachineConfig) -> bool:
    return config.check_for_nan_in_loss or config.check_for_spiky_loss or config.check_for_nan_in_gradients


def _refuse_a_lambda(function: ForwardBackward) -> None:
    """What a lambda takes from a loop around it may have changed when it is called again."""
    if getattr(function, "__name__", "") == "<lambda>":
        rule = "a repetition would see the present values of its variables, not those of the first call"
        raise ConfigError("session.checked", "lambda", rule, "Give the function and, after it, its micro-batches.")


def _is_finite(value: Any) -> bool:
    import torch

    if not torch.is_tensor(value) or not value.is_floating_point():
        return not (isinstance(value, float) and not math.isfinite(value))
    local = value.to_local() if hasattr(value, "to_local") else value
    return bool(torch.isfinite(local).all())
