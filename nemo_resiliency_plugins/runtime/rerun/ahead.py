"""The values that losses have when a backward pass begins from them: they can be read while it runs."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclasses.dataclass(eq=False)
class Root:
    """A tensor of one element that a backward pass began from.

    Attributes:
        alias: of the same memory, which so is not given to another tensor.
        version: how often it had been written to.
        value: a copy of what it held. Collectives write without a new version: the original may be another one by now.
        written: an event behind that copy; None on a CPU.
    """

    alias: torch.Tensor
    version: int
    value: Any = None
    written: Any = None

    def take(self, _gradient: Any) -> None:
        """Autograd calls it where the pass begins, on the stream of the forward pass."""
        import torch

        if self.alias.is_cuda and torch.cuda.is_current_stream_capturing():
            return  # nothing outside can wait for events of a CUDA graph
        self.value = self.alias.clone().reshape(())
        if self.alias.is_cuda:
            self.written = torch.cuda.Event()
            self.written.record()

    def is_of(self, loss: Any) -> bool:
        """Whether ``loss`` is this tensor, or it without its graph, and has not changed since."""
        mine = self.alias
        is_alike = _is_plain(loss) and (loss.device, loss.dtype, loss.numel()) == (mine.device, mine.dtype, 1)
        return is_alike and loss.data_ptr() == mine.data_ptr() and loss._version == self.version


class BackwardCalls:
    """The calls of ``backward()`` in the present thread, as long as :meth:`noted` is entered.

    A loss that is computed after the backward pass, or by a backward pass that goes another way than
    ``torch.autograd.backward``, is not found among them.
    """

    def __init__(self) -> None:
        self._roots: list[Root] = []

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Note the calls to come; they are forgotten at the end."""
        import torch

        real, thread = torch.autograd.backward, threading.get_ident()

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            if not isinstance(tensors, (torch.Tensor, torch.autograd.graph.GradientEdge)):
                tensors = tuple(tensors)  # an iterator can be read only once
            if threading.get_ident() == thread:
                hooks.extend(self._note(tensors))
            real(tensors, *args, **kwargs)

        hooks: list[Any] = []
        torch.autograd.backward = backward
        try:
            yield
        finally:
            if torch.autograd.backward is backward:  # and no library has put its own there meanwhile
                torch.autograd.backward = real
            for hook in hooks:
                hook.remove()
            self._roots.clear()

    def of(self, loss: Any) -> Root | None:
        """The newest call with ``loss``, if it took its value."""
        return next((root for root in reversed(self._roots) if root.value is not None and root.is_of(loss)), None)

    def _note(self, tensors: Any) -> Iterator[Any]:
        for tensor in [tensors] if hasattr(tensors, "detach") else tensors:
            if _is_plain(tensor) and tensor.requires_grad and tensor.numel() == 1:
                root = Root(tensor.detach(), tensor._version)
                self._roots.append(root)
                yield tensor.register_hook(root.take)


def _is_plain(tensor: Any) -> bool:
    """One whose memory is its own, and whose changes are counted: no subclass, and no inference tensor."""
    import torch

    return type(tensor) is torch.Tensor and not tensor.is_inference()
