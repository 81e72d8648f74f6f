"""Hugging Face's Trainer: ``Trainer(..., callbacks=[ResiliencyCallback()])``, and the session does the rest.

Tried with transformers 5.24. Checkpoints are the trainer's own, in its ``output_dir`` and at its ``save_steps``; a
marker in each tells that all ranks have written their part.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import transformers

from nemo_resiliency_plugins import runtime
from nemo_resiliency_plugins.contract import CHECKPOINTING, Reason, fsync_directory
from nemo_resiliency_plugins.errors import ConfigError
from nemo_resiliency_plugins.integrations import versions
from nemo_resiliency_plugins.runtime import rng
from nemo_resiliency_plugins.runtime.effective import Given
from nemo_resiliency_plugins.runtime.log import line, logger

MARKER = "nrp_complete"
EVALUATION = "evaluation"


class ResiliencyCallback(transformers.TrainerCallback):
    """Opens a session around ``Trainer.train``, which then resumes from the newest whole checkpoint by itself.

    Args:
        config: as :func:`runtime.session` takes it; the variables and the file of the plugins win over it.

    Raises:
        UnsupportedError: transformers is older than what was tried.
    """

    def __init__(self, config: Given | Sequence[Given] | None = None) -> None:
        versions.require("transformers", transformers.__version__, versions.TRANSFORMERS)
        self._config = config
        self.stop_reason: Reason | None = None
        """Why ``train`` has ended; None before its end, and after an error."""
        self._sections = contextlib.ExitStack()
        self._steps: Iterator[int] = iter(())
        self._is_in_step = False
        self._saved: int | None = None
        self._before_evaluation: rng.Generators | None = None
        _let_trainers_ask()

    @contextlib.contextmanager
    def opened(self, trainer: Any) -> Iterator[str | None]:
        """For as long as the trainer trains; gives the checkpoint to resume from."""
        self._trainer = trainer
        with runtime.session(self._config) as self._session:
            try:
                yield self._newest()
            finally:
                self._sections.close()
        self.stop_reason = self._session.stop_reason

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        optimizer = kwargs["optimizer"]
        watched = {"model": self._trainer.model_wrapped, "optimizer": getattr(optimizer, "optimizer", optimizer)}
        start = self._session.attach(
            watched, save=self._save, load=self._require, latest=lambda: state.global_step or None
        )
        self._saved = start or None
        self._steps = self._session.steps(start, state.max_steps)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._sections.close()
        self._is_in_step = next(self._steps, None) is not None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._expect(state, control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._expect(state, control)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._before_evaluation is not None:
            self._before_evaluation.put_back()
            self._before_evaluation = None
            self._expect(state, control, evaluated=True)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._sections.close()
        self._mark(state.global_step)
        self._session.save()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._sections.close()
        if self._is_in_step:
            self._session.stop()
        next(self._steps, None)

    def _expect(self, state: Any, control: Any, *, evaluated: bool = False) -> None:
        """What the trainer does next takes its own time. Ranks that are told to leave save, and evaluate nothing.

        So that this changes no bit, an evaluation leaves no trace in the random numbers.
        """
        self._sections.close()
        if self._session.should_stop():
            control.should_training_stop = True
            control.should_evaluate = False
        is_last = control.should_training_stop or state.global_step >= state.max_steps
        control.should_save = (control.should_save or is_last) and state.global_step != self._saved
        if control.should_evaluate and not evaluated:
            self._before_evaluation = rng.Generators()
            self._sections.enter_context(self._session.section(EVALUATION))
        elif control.should_save:
            self._sections.enter_context(self._session.section(CHECKPOINTING))

    def _save(self, step: int) -> None:
        """Usually the trainer has written it already."""
        if step != self._saved:
            self._trainer._save_checkpoint(self._trainer.model, None)
            self._mark(step)

    def _require(self, step: int) -> None:
        if self._trainer.state.global_step != step:
            rule = f"rank 0 has resumed from step {step}"
            remedy = "Keep output_dir on a file system that all ranks share."
            raise ConfigError("TrainingArguments.output_dir", self._trainer.state.global_step, rule, remedy)

    def _mark(self, step: int) -> None:
        """Collective."""
        self._trainer.accelerator.wait_for_everyone()
        if self._trainer.is_world_process_zero():
            self._marker(step).touch()
            fsync_directory(self._marker(step).parent)
        self._trainer.accelerator.wait_for_everyone()
        self._saved = step

    def _marker(self, step: int) -> Path:
        return Path(self._trainer.args.output_dir, f"checkpoint-{step}", MARKER)

    def _newest(self) -> str | None:
        """The newest checkpoint that all ranks have written; one of a training without us counts if there is none."""
        root = Path(self._trainer.args.output_dir)
        steps = {path: path.name.rpartition("-")[2] for path in root.glob("checkpoint-*") if path.is_dir()}
        found = sorted((int(step), path) for path, step in steps.items() if step.isdigit())
        whole = [path for _, path in found if (path / MARKER).exists()]
        if found and not whole:
            whole = [path for _, path in found if (path / "trainer_state.json").exists()]
            if self._trainer.is_world_process_zero():
                logger().warning(line(0, f"{root}: no checkpoint has its marker; the newest is taken as it is"))
        return str(whole[-1]) if whole else None


def _let_trainers_ask() -> None:
    """Wrap ``Trainer.train`` once: it takes the checkpoint as an argument and has no hook for that."""
    train = transformers.Trainer.train
    if getattr(train, "asks_callbacks", False):
        return

    @functools.wraps(train)
    def asking(trainer: Any, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        ours = [each for each in trainer.callback_handler.callbacks if isinstance(each, ResiliencyCallback)]
        if not ours:
            return train(trainer, resume_from_checkpoint, *args, **kwargs)
        with ours[0].opened(trainer) as newest:
            return train(trainer, newest or resume_from_checkpoint, *args, **kwargs)

    asking.asks_callbacks = True  # type: ignore[attr-defined]
    transformers.Trainer.train = asking
