"""Losses that are known before the backward pass begins, and so can be read while it runs."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclasses.dataclass(frozen=True)
class Root:
    """A tensor that a backward pass began from.

    Attributes:
        alias: of the same memory, which so is not given to another tensor.
        version: how often it had been written to.
        sequence: its number among the operations that autograd has recorded in this thread.
        written: an event behind all that the stream had to do until then; None on a CPU.
    """

    alias: torch.Tensor
    version: int
    sequence: int | None
    written: Any

    def is_behind(self, loss: Any) -> bool:
        """Whether ``loss`` is sure to have had its value when this backward pass began."""
        if loss.device != self.alias.device:
            return False
        if loss.data_ptr() == self.alias.data_ptr():
            return bool(loss._version == self.version)
        mine, its = self.sequence, _sequence(loss)
        return loss._version == 0 and mine is not None and its is not None and its < mine


class BackwardCalls:
    """The calls of ``backward()`` in the present thread, as long as :meth:`noted` is entered.

    A loss that is computed after the backward pass, or by a backward pass that goes another way than
    ``torch.autograd.backward``, is not found among them.
    """

    def __init__(self) -> None:
        self._roots: list[Root] = []

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Forget the earlier calls, and note those to come."""
        import torch

        self._roots.clear()
        real, thread = torch.autograd.backward, threading.get_ident()

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            if threading.get_ident() == thread:
                self._note(tensors)
            real(tensors, *args, **kwargs)

        torch.autograd.backward = backward
        try:
            yield
        finally:
            torch.autograd.backward = real

    def behind(self, loss: Any) -> Root | None:
        """The first backward pass before which ``loss`` had its value; None where that cannot be told."""
        return next((root for root in self._roots if _is_plain(loss) and root.is_behind(loss)), None)

    def _note(self, tensors: Any) -> None:
        roots = [tensors] if hasattr(tensors, "detach") else tensors
        for root in roots:
            if _is_plain(root) and not _is_captured(root):
                self._roots.append(Root(root.detach(), root._version, _sequence(root), _event_on(root.device)))


def _is_plain(tensor: Any) -> bool:
    """One whose memory is its own: no subclass."""
    import torch

    return type(tensor) is torch.Tensor


def _is_captured(tensor: torch.Tensor) -> bool:
    """Whether this only becomes part of a CUDA graph: nothing outside can wait for events in there."""
    import torch

    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def _sequence(tensor: torch.Tensor) -> int | None:
    number = getattr(tensor.grad_fn, "_sequence_nr", None)
    return None if number is None else int(number())


def _event_on(device: torch.device) -> Any:
    if device.type != "cuda":
        return None
    import torch

    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return event
