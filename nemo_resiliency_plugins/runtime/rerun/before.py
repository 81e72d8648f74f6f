"""What a run of a step begins from, and putting it back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nemo_resiliency_plugins.runtime import rng

if TYPE_CHECKING:
    import torch

LARGE_BUFFER = 2**16
"""Elements from which on a buffer is copied only after a change that torch has counted."""


class Before:
    """Gradients, buffers and random numbers as they were before a run.

    torch does not count all changes of a buffer: not those by batch norm, by collectives and through ``.data``. Large
    ones, which are tables as a rule, are copied only where it has counted one since the last copy.
    """

    def __init__(self, models: Sequence[torch.nn.Module]) -> None:
        self._parts = list({id(part): part for model in models for part in model.modules()}.values())
        self.parameters = list({id(each): each for model in models for each in model.parameters()}.values())
        self._buffers: dict[tuple[int, str], _Buffer | None] = {}
        self._gradients: list[torch.Tensor | None] = []
        self._random: rng.Generators | None = None

    def capture(self) -> None:
        self._random = rng.Generators()
        gradients = (parameter.grad for parameter in self.parameters)
        self._gradients = [None if gradient is None else gradient.clone() for gradient in gradients]
        before, self._buffers = self._buffers, {}
        for number, part in enumerate(self._parts):
            for name, buffer in part._buffers.items():
                kept = before.get((number, name))
                is_known = kept is not None and buffer is not None and kept.is_of(buffer)
                self._buffers[number, name] = kept if is_known else _kept(buffer)
        _copy_again([each for each in self._buffers.values() if each is not None and not each.is_current])

    def restore(self) -> None:
        """Put back what :meth:`capture` took, as often as wanted."""
        if self._random is not None:
            self._random.put_back()
        for parameter, gradient in zip(self.parameters, self._gradients, strict=True):
            parameter.grad = None if gradient is None else gradient.clone()
        for (number, name), kept in self._buffers.items():
            setattr(self._parts[number], name, None if kept is None else kept.put_back())


class _Buffer:
    """One buffer and a copy of its value."""

    def __init__(self, buffer: torch.Tensor) -> None:
        self.buffer, self.value, self.version = buffer, buffer.detach().clone(), _version(buffer)

    def is_of(self, buffer: torch.Tensor) -> bool:
        return buffer is self.buffer and _form(buffer) == _form(self.value)

    @property
    def is_current(self) -> bool:
        """Whether the buffer is known to have the value of the copy."""
        return self.version is not None and _version(self.buffer) == self.version

    def put_back(self) -> torch.Tensor:
        """The buffer, with the value that it had; a forward pass may have put another tensor in its place."""
        import torch

        if self.buffer.is_inference():
            return self.value.clone()  # it must not be written to
        if not self.is_current:
            with torch.no_grad():
                self.buffer.copy_(self.value)
            self.version = _version(self.buffer)
        return self.buffer


def _kept(buffer: torch.Tensor | None) -> _Buffer | None:
    return None if buffer is None else _Buffer(buffer)


def _form(tensor: torch.Tensor) -> tuple[torch.Size, torch.dtype, torch.device]:
    return tensor.shape, tensor.dtype, tensor.device


def _copy_again(kept: Sequence[_Buffer]) -> None:
    import torch

    if kept:
        with torch.no_grad():
            torch._foreach_copy_([each.value for each in kept], [each.buffer for each in kept])
    for each in kept:
        each.version = _version(each.buffer)


def _version(buffer: torch.Tensor) -> int | None:
    """How often it was written to; None where that is not known, or a copy costs less than the doubt."""
    return None if buffer.is_inference() or buffer.numel() < LARGE_BUFFER else buffer._version
