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
        devices = [each.seen.device if getattr(each.seen, "is_cuda", False) else None for each in losses]
        device = next(filter(None, devices), None)
        together = [each for each, its in zip(losses, devices, strict=True) if its is not None and its == device]
        read = iter(self._from_device(together, device) if device is not None else ())
        return [
            next(read) if its is not None and its == device else float(each.seen)
            for each, its in zip(losses, devices, strict=True)
        ]

    def _from_device(self, losses: Sequence[Loss], device: torch.device) -> list[float]:
        import torch

        if self._stream is None:
            self._stream = torch.cuda.Stream(device, priority=-1)
        if self._host is None or len(self._host) != len(losses):
            self._host = torch.empty(len(losses), dtype=torch.float64, pin_memory=True)
        values = [self._await(self._stream, loss) for loss in losses]
        with torch.cuda.stream(self._stream):
            packed = torch.stack([value.to(torch.float64) for value in values])
            self._host.copy_(packed, non_blocking=True)
        self._stream.synchronize()
        return [float(value) for value in self._host.tolist()]

    def _await(self, stream: Any, loss: Loss) -> Any:
        """The value, behind the forward pass where that is enough, else behind all that was queued."""
        import torch

        if loss.root is None:
            stream.wait_stream(torch.cuda.current_stream(loss.seen.device))
        else:
            stream.wait_event(loss.root.written)
        return loss.seen
