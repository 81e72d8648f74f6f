"""Running saves: at once, or in a thread of their own while the training goes on; and what a failed one means."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from nemo_resiliency_plugins.compat.nvrx import installed_version
from nemo_resiliency_plugins.config import CheckpointConfig
from nemo_resiliency_plugins.config.preemption import PREEMPTION_SIGNALS
from nemo_resiliency_plugins.errors import CheckpointError
from nemo_resiliency_plugins.runtime.agreement import Ranks
from nemo_resiliency_plugins.runtime.checkpoint.reporting import GLOBAL, LOCAL, Reporter, Save
from nemo_resiliency_plugins.runtime.log import line, logger

if TYPE_CHECKING:
    from nemo_resiliency_plugins.runtime.checkpoint.staging import Staging
    from nemo_resiliency_plugins.runtime.checkpoint.state import Content

Gather = Callable[[], "Content"]
Write = Callable[["Content", Ranks], bool]
"""Writes and commits, all ranks together; whether anything had to be written. Raises CheckpointError on all alike."""


class Saver:
    """Runs each save in the calling thread.

    Since the ranks agree on what becomes of each save, they count alike and decide alike.

    Raises:
        CheckpointError: from :meth:`run`, :meth:`boundary` and :meth:`drain`, on all ranks at the same one of their
            calls: more saves in a row have failed than are tolerated.
    """

    def __init__(self, ranks: Ranks, reporter: Reporter, *, tolerated: int) -> None:
        self._ranks, self._reporter, self._tolerated = ranks, reporter, tolerated
        self._in_a_row = 0
        self._last_error: CheckpointError | None = None

    def run(self, save: Save, gather: Gather, write: Write) -> None:
        """Save what ``gather`` gives now."""
        if error := self._attempt(save, gather(), write):
            raise error

    def boundary(self) -> None:
        """Called by all ranks between the same steps; costs no communication."""

    def drain(self) -> None:
        """Wait until nothing is in flight any more; a failure of the last save is not tolerated here."""
        if self._last_error is not None:
            raise self._last_error

    def close(self, limit_s: float | None = None) -> None:
        """Wait for what is in flight, without an error: what cannot be finished stays without its marker."""

    def _attempt(self, save: Save, content: Content, write: Write) -> CheckpointError | None:
        """Returns the error that the training ends with; None where all is well or tolerated."""
        try:
            written = write(content, self._ranks)
        except CheckpointError as error:
            self._in_a_row += 1
            self._last_error = error
            self._reporter.failed(save, str(error), in_a_row=self._in_a_row, tolerated=self._tolerated)
            return error if self._in_a_row > self._tolerated else None
        self._in_a_row, self._last_error = 0, None
        self._reporter.durable(save, written=written)
        return None


class Writer(threading.Thread):
    """A thread that may be waited for again: Python 3.10 to 3.12 take one for ended when a handler raises in its join.

    No executor: the interpreter joins the threads of one at its end, also one that hangs in a dead file system.
    """

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        super().__init__(name=name, daemon=True)
        self._work = work
        self._ended = threading.Event()

    def run(self) -> None:
        # Processes that NVRx starts from here inherit this. Slurm signals all those of a step, and what this process
        # has a handler for may be the announcement of the last save (NVRx 0.4.1 to 0.7.0 end on SIGTERM).
        signal.pthread_sigmask(signal.SIG_BLOCK, handled_signals())
        try:
            self._work()
        finally:
            self._ended.set()

    def ends_within(self, seconds: float) -> bool:
        """Whether it has ended then, or was never started."""
        if self.ident is not None:
            if not self._ended.wait(seconds):
                return False
            self.join()  # takes no time any more
        return True


def handled_signals() -> set[signal.Signals]:
    signals = (signal.Signals[name] for name in PREEMPTION_SIGNALS)
    return {each for each in signals if callable(signal.getsignal(each))}


class BackgroundSaver(Saver):
    """Runs one save at a time in a thread, which agrees with those of the other ranks through a group of its own.

    A second save waits for the first: two copies of the state would be in memory otherwise.

    Args:
        ranks: all ranks, in a group that no other thread uses and whose collectives end after ``timeout_s``.
        timeout_s: seconds to wait for a writer before it counts as dead.
        stagings: what copies the state, for each tier.
    """

    def __init__(
        self, ranks: Ranks, reporter: Reporter, *, tolerated: int, timeout_s: float, stagings: Mapping[str, Staging]
    ) -> None:
        super().__init__(ranks, reporter, tolerated=tolerated)
        self._stagings = stagings
        self._timeout_s = timeout_s
        self._writer: Writer | None = None
        self._lock = threading.Lock()
        self._passed = 0
        self._end: Future[int] | None = None
        self._error: CheckpointError | None = None

    def run(self, save: Save, gather: Gather, write: Write) -> None:
        self._finish_previous()
        staging = self._stagings[save.tier]
        content = staging.copy(gather())
        self._writer = Writer(f"writer of the {save}", partial(self._work, save, content, write))
        self._reporter.scheduled(save)
        self._writer.start()
        if not staging.await_copied(self._writer, self._timeout_s):
            self._await_writer()

    def boundary(self) -> None:
        with self._lock:
            self._passed += 1
            end = self._end
        if end is not None and self._error is not None and self._passed >= end.result():
            raise self._error

    def drain(self) -> None:
        self._finish_previous()
        super().drain()

    def close(self, limit_s: float | None = None) -> None:
        try:
            self._await_writer(limit_s)
        except CheckpointError as error:
            logger().warning(line(self._ranks.rank, f"{error}; it stays without its marker"))
        for staging in self._stagings.values():
            staging.close()

    def _finish_previous(self) -> None:
        self._await_writer()
        if self._error is not None:
            raise self._error

    def _await_writer(self, limit_s: float | None = None) -> None:
        """A writer that has once not answered is not waited for again."""
        writer = self._writer
        limit_s = self._timeout_s if limit_s is None else min(limit_s, self._timeout_s)
        if writer is not None:
            ended = writer.ends_within(limit_s)
            self._writer = None  # not before: a signal handler that raises cuts the wait, and close() waits again
            if not ended:
                self._error = CheckpointError(f"the {writer.name} has not answered for {limit_s:g} s")
                raise self._error

    def _work(self, save: Save, content: Content, write: Write) -> None:
        error: CheckpointError | None = CheckpointError(f"the writer of the {save} has died")
        agreed = False
        try:
            error = self._attempt(save, content, write)
            agreed = True
        except RuntimeError as broken:
            # torch's own: another rank is gone, or its writer has not answered in time.
            error = CheckpointError(f"the writers of the {save} have lost each other: {broken}")
        finally:
            if error is not None:
                self._halt(error, agreed=agreed)

    def _halt(self, error: CheckpointError, *, agreed: bool) -> None:
        """Let all ranks end at the same boundary, the first that none of them can have passed.

        From the moment that ``_end`` is there no rank passes a boundary without knowing which one it is; so none can
        be further than what it tells the others here.
        """
        end: Future[int] = Future()
        with self._lock:
            self._error, self._end, passed = error, end, self._passed
        first = 0
        try:
            first = int(self._ranks.maximum([float(passed)])[0]) + 1 if agreed else 0
        except RuntimeError:
            first = 0  # the others are gone, there is nobody to wait for
        finally:
            end.set_result(first)


def make_saver(config: CheckpointConfig, ranks: Ranks, reporter: Reporter) -> Saver:
    """Collective."""
    if not config.async_save:
        return Saver(ranks, reporter, tolerated=config.tolerated_save_failures)
    timeout_s = config.drain_timeout_s
    return BackgroundSaver(
        Ranks(timeout=timedelta(seconds=timeout_s)),
        reporter,
        tolerated=config.tolerated_save_failures,
        timeout_s=timeout_s,
        stagings=make_stagings(ranks, timeout_s),
    )


def make_stagings(ranks: Ranks, timeout_s: float) -> Mapping[str, Staging]:
    """NVRx's process serves the global tier where the GPUs are and NVRx is installed; else all is copied here."""
    import torch

    from nemo_resiliency_plugins.runtime.checkpoint.staging import Staging

    plain = Staging()
    if ranks.alone or not torch.cuda.is_available() or installed_version() is None:
        return {GLOBAL: plain, LOCAL: plain}
    from nemo_resiliency_plugins.runtime.checkpoint.gpu_staging import GpuStaging

    return {GLOBAL: GpuStaging(timeout_s), LOCAL: plain}
