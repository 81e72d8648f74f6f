"""The one object that a training script holds; each feature of the runtime hangs on it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from nemo_resiliency_plugins.contract import CHECKPOINTING, Reason
from nemo_resiliency_plugins.errors import ConfigError
from nemo_resiliency_plugins.runtime import watch
from nemo_resiliency_plugins.runtime.batch import BatchNotes
from nemo_resiliency_plugins.runtime.blocks import Blocks
from nemo_resiliency_plugins.runtime.checkpoint.manager import Checkpointer
from nemo_resiliency_plugins.runtime.checkpoint.reporting import GLOBAL, Reporter
from nemo_resiliency_plugins.runtime.effective import Given, is_strict, resolve_all
from nemo_resiliency_plugins.runtime.ending import Ending, Leaving
from nemo_resiliency_plugins.runtime.events import EventLog, emit_failure
from nemo_resiliency_plugins.runtime.features import Features
from nemo_resiliency_plugins.runtime.identity import Identity
from nemo_resiliency_plugins.runtime.in_process import life
from nemo_resiliency_plugins.runtime.log import line, logger
from nemo_resiliency_plugins.runtime.loop import Loop, is_success, one_number, without_attach

if TYPE_CHECKING:
    import torch

    from nemo_resiliency_plugins.runtime.agreement import Ranks


def session(config: Given | Sequence[Given] | None = None, *, strict: bool | None = None) -> Session:
    """Open a session: a context manager, entered before ``init_process_group``.

    Args:
        config: what the script asks for, one config or a list with one of each kind; the plugins' variables and
            file win over it, field by field.
        strict: a feature that was asked for and cannot work here is an error instead of a warning;
            None takes ``NRP_STRICT``.

    Raises:
        ConfigError: a bad value, with its field and remedy.
        NotWorkingError: on entry, under ``strict``.
    """
    return Session(config, strict=strict)


class Session(Blocks):
    """See :func:`session`. What is said to be collective must be called by all ranks in the same order."""

    def __init__(self, config: Given | Sequence[Given] | None, *, strict: bool | None) -> None:
        self._configs = resolve_all(config, os.environ)
        self._strict = is_strict(os.environ) if strict is None else strict
        self._identity = Identity.from_env()
        self._notes = BatchNotes(self._identity)
        self._checkpointer = Checkpointer()
        self._shared_ranks: Ranks | None = None
        self._models: list[torch.nn.Module] = []
        self._loop = Loop()
        self._entered = False
        self._loss: Any = None
        self._ending = Ending(self._loop, self._notes)

    @property
    def stop_reason(self) -> Reason | None:
        """Why the ranks stop together; None while they do not."""
        return self._ending.reason

    def __enter__(self) -> Session:
        if self._entered:
            raise ConfigError("session", "entered twice", "serves one with statement", "Open a new session().")
        self._entered = True
        identity = self._identity
        self._events = EventLog(identity.directory, identity.attempt, identity.rank)
        place = {"pid": os.getpid(), "node": identity.node, "world_size": identity.world_size}
        looks = {"stragglers": self._configs.straggler.enabled, "results": self._configs.rerun.rerun_mode}
        self._events.emit("session_started", **place, **looks)
        if identity.rank == 0:
            logger().info(line(0, f"effective configuration: {self._configs}"))
        self._notes.started()
        self._features = Features(self._configs, identity, self._events, strict=self._strict)
        watch.reached_session()
        life.opened(self._loop)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        failed = error is not None and not is_success(error) and not isinstance(error, Leaving)
        try:
            if isinstance(error, Leaving):
                pass  # all has been done
            elif error is not None and failed:
                emit_failure(self._events, "session_failed", error, step=self._loop.in_step)
            elif self._features.preemption.told and self._loop.in_step is None:
                self._stop_together()
            elif self._loop.done:
                self.finish()
            elif self.stop_reason is None:
                self._say(f"no finished verdict: {self._loop.why_not_done}. Call finish() if that is meant")
        finally:
            self._checkpointer.close(life.close_limit_s() if failed else None)
            self._features.close(together=not failed, finished=self.stop_reason is Reason.FINISHED)
            self._events.close()

    def attach(
        self,
        state: Mapping[str, Any] | None = None,
        directory: str | Path | None = None,
        every: int = 0,
        *,
        keep: int = 2,
        process_group: Any = None,
        save: Callable[[int], object] | None = None,
        load: Callable[[int], object] | None = None,
        latest: Callable[[], int | None] | None = None,
    ) -> int:
        """Collective. Resume from the newest checkpoint, and return the step to go on with: 0 on a first start.

        Args:
            state: what to save and restore by name: modules, optimizers, anything with ``state_dict()`` and
                ``load_state_dict()``. Random number generators are added.
            directory: where checkpoints and ``ft_state.json`` are kept, on a file system that all ranks share.
            every: steps between checkpoints; 0 saves after the last step only.
            keep: committed checkpoints to keep.
            process_group: a group over all ranks with a CPU backend; None makes one.
            save, load, latest: a format of the user's own: ``save(step)``, ``load(step)``, and ``latest()`` with
                the newest step or None. ``state`` then holds what stragglers are told by, and is not saved.

        Raises:
            ConfigError: neither ``state`` with a directory nor all three functions were given, or a bad value.
            CheckpointError: checkpoints are there and none can be resumed from.
        """
        import torch

        from nemo_resiliency_plugins.runtime.attaching import Wanted, make_checkpointer, make_ranks

        if self._shared_ranks is not None or not self._entered:
            raise ConfigError("session.attach", "called", "belongs once into the session's with block", "Call it once.")
        root = Path(directory).expanduser().absolute() if directory is not None else None
        self._loop.every = every
        self._shared_ranks = make_ranks(self._identity, process_group)
        wanted = Wanted(state, root, every, keep, (save, load, latest))
        self._models = wanted.of_type(torch.nn.Module)
        optimizers, left = wanted.of_type(torch.optim.Optimizer), root or self._identity.directory
        self._features.results.attached(wanted.of_type(object), self._shared_ranks, left)
        reporter = Reporter(self._identity.rank, self._events, self._durable)
        self._checkpointer = make_checkpointer(
            self._shared_ranks, wanted, self._configs.checkpoint, reporter, self._identity.node, self._features.results
        )
        self._features.detection.start_learning(left, self._shared_ranks.maximum)
        began = time.monotonic()
        resumed = self._checkpointer.resume()
        tier = self._checkpointer.tier
        self._events.emit("resumed", step=resumed, tier=tier, seconds=time.monotonic() - began)
        self._features.attached(self._models, optimizers, self._shared_ranks, resumed)
        return self._loop.resume(resumed, saved=tier == GLOBAL)

    def steps(self, start: int, stop: int) -> Iterator[int]:
        """The steps ``start`` to ``stop - 1``, each watched; collective where a checkpoint is due, and at the end.

        Leave the loop early with :meth:`stop`, not with ``break``: the state in the middle of a step belongs to no
        step, and a generator that something still holds keeps its section open.
        """
        self._check_steps(start, stop)
        self._features.loop_begins()
        try:
            for step in range(start, stop):
                if self.should_stop():
                    self._features.detection.loop_ends()
                    self._stop_together()
                    return
                self._loop.in_step = step
                self._features.step_begins(step)
                yield step
                self._step_ends(step, first=step == start)
                if self._loop.stop_asked:
                    break
            self._features.loop_ends()
            self._save_last()
            self._loop.done = True
        finally:
            self._features.detection.loop_ends()

    def stop(self) -> None:
        """Let the loop end after the running step, as if it were the last; all ranks in the same step."""
        self._loop.stop_asked = True

    def save(self) -> None:
        """Collective. Save the state after the last completed step; inside a step, when that step ends.

        Raises:
            CheckpointError: on all ranks, when the checkpoint could not be committed.
        """
        if self._loop.in_step is not None:
            self._loop.save_asked = True
        elif self._shared_ranks is not None and self._loop.unsaved:
            self._save(self._shared_ranks, self._loop.completed)

    def observe(self, loss: Any) -> None:
        """Tell the session the loss of the running step: one number or a tensor with one. Never synchronises a GPU."""
        self._loss = one_number(loss)

    def checked(self, forward_backward: Callable[..., Any], *micro_batches: Any) -> Any:
        """Collective. The running step's forward and backward passes; returns the loss, detached, of the whole step.

        Where results are validated, all ranks agree here that no loss and no gradient is suspect, before an optimizer
        uses them; else the passes run again, from the same gradients, buffers and random numbers.

        Args:
            forward_backward: does the passes of one micro-batch and returns its loss, or a list of losses, empty on
                a rank without one. It must not step an optimizer nor fetch data: its arguments must be all it needs.
            micro_batches: the function is called once with each of them; without any, once without arguments.

        Raises:
            ConfigError: the function gives no loss, or a lambda was given.
            SystemExit: on all ranks, where the result is suspect again: 16 to run elsewhere, 17 to end.
        """
        loss = self._features.results.run(self._loop.in_step, forward_backward, micro_batches, self._leave)
        self._loss = self._loss if loss is None else loss
        return loss

    def should_stop(self) -> bool:
        """Whether all ranks are to stop; for the user's own inner loops (evaluation).

        All ranks must ask in the same order, and all get the same answer: after True, go back to the training loop,
        which saves and ends before its next step.
        """
        asked = self.stop_reason is not None or bool(self._features.stragglers.found)
        return asked or self._features.preemption.tick()

    def settle(self, forward_backward: Callable[[], object]) -> None:
        """Two throwaway passes before the loop, so that a restarted DDP model gives the same bits.

        ``forward_backward`` does the forward and backward pass of one step on a fixed batch, without an optimizer
        step. Gradients, buffers and random numbers of the attached modules are put back.
        """
        from nemo_resiliency_plugins.runtime.settle import settle

        settle(self._models, forward_backward)

    def finish(self) -> None:
        """Collective. The training is done: rank 0 writes the finished verdict when all ranks are here."""
        self._features.stragglers.training_ends(self._loop.completed)
        self._ending.finish(self._checkpointer.drain, self._shared_ranks, self._events)

    def _stop_together(self) -> None:
        save, ranks, stragglers = self._save_last, self._shared_ranks, self._features.stragglers
        if stragglers.found:
            self._ending.leave_stragglers(save, ranks, self._events, stragglers.found)
            return
        stragglers.training_ends(self._loop.completed)
        self._ending.preempt(save, ranks, self._events, self._features.preemption.since_notice_s())

    def _leave(self, reason: Reason, of: tuple[int, str]) -> NoReturn:
        with self._features.detection.section(CHECKPOINTING):
            self._checkpointer.save_aside(self._loop.completed)
            raise self._ending.leave_results(self._checkpointer.drain, self._shared_ranks, self._events, reason, of)

    def _check_steps(self, start: int, stop: int) -> None:
        if not self._entered:
            raise ConfigError("session.steps", "called", "belongs into the session's with block", "Enter it first.")
        attached = self._shared_ranks is not None
        self._loop.check(start, stop, attached=attached)
        without = () if attached else without_attach(self._identity, self._configs.fault_tolerance)
        for text in (*without, *self._loop.nothing_left(stop)):
            self._say(text)

    def _save(self, ranks: Ranks, step: int) -> None:
        with self._features.detection.section(CHECKPOINTING):
            self._checkpointer.save(step, None if self._loss is None else float(self._loss))
            self._loop.saved = step
            self._features.detection.learn(ranks.maximum)
        self._features.preemption.check()

    def _save_last(self) -> None:
        """:meth:`save`, and return when it is durable."""
        self.save()
        with self._features.detection.section(CHECKPOINTING):
            self._checkpointer.drain()

    def _durable(self, step: int, seconds: float) -> None:
        """On rank 0: a checkpoint of the global tier can be resumed from."""
        self._notes.checkpointed(step)
        self._features.preemption.saved(seconds)

    def _say(self, text: str) -> None:
        if self._identity.rank == 0:
            logger().warning(line(0, text))

    def _step_ends(self, step: int, *, first: bool) -> None:
        self._features.step_ends(step, first=first)
        due = self._loop.step_ends(step)
        if self._checkpointer.step_ends(self._loop.completed, saving=due):
            with self._features.detection.section(CHECKPOINTING):
                self._checkpointer.save_locally(self._loop.completed)
        if due:
            self.save()
