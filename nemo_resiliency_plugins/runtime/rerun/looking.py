"""Losses as numbers on the host: one wait for the device, where it can be for no more than their forward passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from nemo_resiliency_plugins.runtime.rerun.replay import Loss


class Looking:
    """Reads the losses of a step, on a stream of its own."""

    def __init__(self) -> None:
        self._stream: torch.cuda.Stream | None = None
        self._host: torch.Tensor | None = None

    def look(self, losses: Sequence[Loss]) -> list[float]:
        there = [loss for loss in losses if getattr(loss.value, "is_cuda", False)]
        values = iter(self._from_device(there)) if there else iter(())
        return [next(values) if loss in there else float(loss.value) for loss in losses]

    def _from_device(self, losses: Sequence[Loss]) -> list[float]:
        import torch

        device = losses[0].value.device
        if self._stream is None:
            self._stream = torch.cuda.Stream(device, priority=-1)
        if self._host is None or len(self._host) != len(losses):
            self._host = torch.empty(len(losses), dtype=torch.float64, pin_memory=True)
        self._wait_on_the_device(self._stream, losses, device)
        with torch.cuda.stream(self._stream):
            packed = torch.stack([loss.value.to(torch.float64) for loss in losses])
            self._host.copy_(packed, non_blocking=True)
        self._stream.synchronize()
        return [float(value) for value in self._host.tolist()]

    def _wait_on_the_device(self, stream: Any, losses: Sequence[Loss], device: torch.device) -> None:
        import torch

        for loss in losses:
            if loss.behind is not None:
                stream.wait_event(loss.behind.written)
            else:
                stream.wait_stream(torch.cuda.current_stream(device))
