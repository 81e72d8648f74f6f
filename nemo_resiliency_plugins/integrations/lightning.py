"""Lightning: ``Trainer(callbacks=[ResiliencyCallback()])``, and the session does the rest.

Tried with lightning 2.5.5 and 2.6. The batches whose gradients are accumulated are a step of the session. Checkpoints
are the trainer's own files, in a directory of ours beside the random numbers of each rank. They are written before a
batch begins, when every hook of the one before has run, so that a resumed training repeats and skips nothing.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import OnExceptionCheckpoint
from lightning.pytorch.utilities.exceptions import _TunerExitException

from nemo_resiliency_plugins import runtime
from nemo_resiliency_plugins.contract import CHECKPOINTING, Reason, fsync_directory
from nemo_resiliency_plugins.errors import ConfigError
from nemo_resiliency_plugins.integrations import versions
from nemo_resiliency_plugins.runtime import rng
from nemo_resiliency_plugins.runtime.effective import Given, resolve_all

EVALUATION = "evaluation"
TRAINER_FILE = "trainer.ckpt"


class ResiliencyCallback(OnExceptionCheckpoint):
    """Opens a session when the training starts; the trainer resumes from the newest checkpoint by itself.

    It is an ``OnExceptionCheckpoint`` because ``Trainer.fit`` asks such callbacks for the checkpoint to resume from,
    where it is given none. ``ckpt_path`` of ``fit`` wins over ours, at every start: leave it out.

    Args:
        directory: where checkpoints are kept, on a file system that all ranks share.
        every: steps between checkpoints; 0 saves at the end only, and at a preemption.
        keep: checkpoints to keep.
        config: as :func:`runtime.session` takes it; the variables and the file of the plugins win over it.

    Raises:
        UnsupportedError: lightning is older than what was tried.
    """

    def __init__(
        self,
        directory: str | Path = "checkpoints",
        every: int = 0,
        *,
        keep: int = 2,
        config: Given | Sequence[Given] | None = None,
    ) -> None:
        versions.require("lightning", pl.__version__, versions.LIGHTNING)
        super().__init__(directory)
        self._root, self._every, self._keep, self._config = Path(directory).absolute(), every, keep, config
        self.stop_reason: Reason | None = None
        """Why ``fit`` has ended; None before its end, and after an error."""
        self._session: runtime.Session | None = None
        self._sections = contextlib.ExitStack()
        self._steps: Iterator[int] = iter(())
        self._completed = 0
        self._is_in_step = self._has_trained = self._is_saving = False
        self._epoch_rng: dict[str, Any] = {}
        self._batch_rng: dict[str, Any] = {}

    @property
    def ckpt_path(self) -> str:
        """The newest checkpoint."""
        newest = max(self._committed(), default=None)
        return str(self._path(newest) / TRAINER_FILE) if newest is not None else ""

    def state_dict(self) -> dict[str, Any]:
        return {"completed": self._completed}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._completed = state_dict["completed"]

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._trainer, self._has_trained = trainer, True
        if resolve_all(self._config, os.environ).preemption.exit_signal_handler:
            _take_signals_back()
        self._session = runtime.session(self._config)
        self._session.__enter__()
        optimizers = {f"optimizer {number}": each for number, each in enumerate(trainer.optimizers)}
        start = self._session.attach(
            {"model": trainer.model, **{name: getattr(each, "optimizer", each) for name, each in optimizers.items()}},
            self._root,
            self._every,
            save=self._save,
            load=self._load,
            latest=lambda: self._completed or None,
        )
        self._steps = self._session.steps(start, sys.maxsize)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._leave_section()
        self._epoch_rng = self._batch_rng = rng.capture()
        if trainer.current_epoch == 0:
            iter(trainer.fit_loop._data_fetcher)  # which the trainer has done before, with other random numbers

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._leave_section()
        if batch_idx % trainer.accumulate_grad_batches == 0 and not self._next_step():
            raise _TunerExitException  # the one way to end fit() here and now, without an evaluation and an error

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._batch_rng = rng.capture()

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._enter_section(EVALUATION)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._leave_section()
        self._batch_rng = rng.capture()

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Of another callback: nothing tells when it has been written, so it has time until the next hook."""
        if not self._is_saving:
            self._enter_section(CHECKPOINTING)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._leave_section()
        if self._session is not None:
            self._session.stop()
            self._next_step()

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """A training that was done at its start has begun no session."""
        if not self._has_trained:
            with runtime.session(self._config) as session:
                session.finish()
            self.stop_reason = session.stop_reason

    def on_exception(self, trainer: pl.Trainer, *arguments: Any, **_: Any) -> None:
        error = arguments[-1]
        self._close(type(error), error, error.__traceback__)

    def teardown(self, trainer: pl.Trainer, *_: Any, **__: Any) -> None:
        self._close(None, None, None)

    def _next_step(self) -> bool:
        """Whether there is one."""
        self._completed += self._is_in_step
        self._is_in_step = next(self._steps, None) is not None
        return self._is_in_step

    def _enter_section(self, name: str) -> None:
        if self._session is not None:
            self._leave_section()
            self._sections.enter_context(self._session.section(name))

    def _leave_section(self) -> None:
        self._sections.close()

    def _close(self, *error: Any) -> None:
        session, self._session = self._session, None
        if session is not None:
            self._sections.close()
            session.__exit__(*error)
            self.stop_reason = session.stop_reason

    def _save(self, step: int) -> None:
        """Collective. All files first, then their place."""
        trainer, path = self._trainer, self._path(step)
        unfinished = path.with_suffix(".unfinished")
        unfinished.mkdir(parents=True, exist_ok=True)
        self._is_saving = True
        with _as_before_the_batch(trainer):
            trainer.save_checkpoint(unfinished / TRAINER_FILE)
        self._is_saving = False
        self._write_random_numbers(unfinished)
        trainer.strategy.barrier("nrp written")
        if trainer.is_global_zero:
            shutil.rmtree(path, ignore_errors=True)  # of a training that was sent back to an older checkpoint
            unfinished.rename(path)
            fsync_directory(self._root)
            for old in sorted(self._committed())[: -self._keep]:
                shutil.rmtree(self._path(old))
        trainer.strategy.barrier("nrp committed")

    def _write_random_numbers(self, path: Path) -> None:
        import torch

        torch.save({"epoch": self._epoch_rng, "batch": self._batch_rng}, path / self._own_file())

    def _load(self, step: int) -> None:
        """The trainer has loaded the rest; it does not bring the data to where they were."""
        import torch

        if self._completed != step:
            remedy = "Keep the directory on a file system that all ranks share."
            raise ConfigError("ResiliencyCallback.directory", self._completed, f"rank 0 resumes from {step}", remedy)
        file = self._path(step) / self._own_file()
        if not file.exists():
            return
        kept = torch.load(file, weights_only=True)
        self._epoch_rng, self._batch_rng = kept["epoch"], kept["batch"]
        _fast_forward(self._trainer, self._epoch_rng, self._batch_rng)

    def _own_file(self) -> str:
        return f"rank{self._trainer.global_rank:05d}.pt"

    def _path(self, step: int) -> Path:
        return self._root / f"step-{step}"

    def _committed(self) -> list[int]:
        names = (path.name.removeprefix("step-") for path in self._root.glob("step-*"))
        return [int(name) for name in names if name.isdigit()]


def _fast_forward(trainer: pl.Trainer, epoch_rng: dict[str, Any], batch_rng: dict[str, Any]) -> None:
    """Pass over the batches of this epoch that are done; loaders that keep their own position are left alone."""
    loop = trainer.fit_loop
    done = loop.epoch_loop.batch_progress.current.completed
    loaders = loop._combined_loader.flattened
    if done >= trainer.num_training_batches or all(hasattr(each, "load_state_dict") for each in loaders):
        rng.restore(batch_rng)
        return
    for loader in loaders:
        samplers: list[Any] = [getattr(loader, name, None) for name in ("sampler", "batch_sampler")]
        for sampler in samplers:
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(loop.epoch_progress.current.processed)
    rng.restore(epoch_rng)
    iter(loop._data_fetcher)
    for _ in range(done):
        next(loop._data_fetcher)
    loop._data_fetcher.fetched = 0  # the trainer adds those that are done
    if done:  # else the random numbers are those of an epoch that has made its iterator
        rng.restore(batch_rng)


@contextlib.contextmanager
def _as_before_the_batch(trainer: pl.Trainer) -> Iterator[None]:
    """The trainer has counted the batch as begun that is not."""
    progress = trainer.fit_loop.epoch_loop.batch_progress
    begun = progress.current.ready - progress.current.completed
    for counts in (progress.current, progress.total):
        counts.ready -= begun
    is_last = progress.is_last_batch
    progress.is_last_batch = is_last and not begun
    try:
        yield
    finally:
        progress.is_last_batch = is_last
        for counts in (progress.current, progress.total):
            counts.ready += begun


def _take_signals_back() -> None:
    """The trainer's own handler of SIGTERM raises after a batch, on each rank after another one."""
    handler: Any = signal.getsignal(signal.SIGTERM)
    if _is_lightnings(handler):
        others = [each for each in handler.signal_handlers if not _is_lightnings(getattr(each, "__self__", each))]
        signal.signal(signal.SIGTERM, others[-1] if others else signal.SIG_DFL)


def _is_lightnings(thing: Any) -> bool:
    return type(thing).__module__.startswith("lightning.")
