"""A copy of the state in memory, so that a save holds the values of its own step whatever the training does next."""

from __future__ import annotations

import copy
import threading

import torch
from torch.distributed.tensor import DTensor

from nemo_resiliency_plugins.runtime.checkpoint.state import Content


class Staging:
    """Keeps its buffers from one save to the next: touching fresh memory costs more than the copy itself.

    Only one copy is alive at a time; the next one overwrites it.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, torch.Tensor] = {}

    def copy(self, content: Content) -> Content:
        """``content`` as it is now, in memory of its own on the CPU."""
        with torch.no_grad():
            self._buffers = {name: self._copied(name, tensor) for name, tensor in content.tensors.items()}
        return Content(dict(self._buffers), copy.deepcopy(content.host))

    def await_copied(self, writer: threading.Thread, timeout_s: float) -> bool:
        """Whether the training may go on; False if that cannot be said within the time."""
        return True

    def close(self) -> None:
        """Let go of what else holds copies."""

    def _copied(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        buffer = self._buffers.get(name)
        if buffer is not None and _form(buffer) == _form(tensor):
            return buffer.copy_(tensor)
        if tensor.is_cuda and not isinstance(tensor, DTensor):
            # Only pinned memory is filled at the speed of the bus.
            return torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor)
        # torch 2.13's own offload for async saves copies nothing that is on the CPU already.
        return tensor.detach().to("cpu", copy=True)


def _form(tensor: torch.Tensor) -> tuple[object, ...]:
    sharding = (tensor.device_mesh, tensor.placements) if isinstance(tensor, DTensor) else None
    return tensor.shape, tensor.dtype, tensor.stride(), sharding
