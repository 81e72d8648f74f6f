"""Losses and gradients as numbers on the host, at the price of one wait for the device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nemo_resiliency_plugins.runtime.rerun.results import Seen

if TYPE_CHECKING:
    import torch


class Looking:
    """Reads what a run of the step has given; ``gradients``: whether they are looked at."""

    def __init__(self, parameters: Sequence[torch.Tensor], *, gradients: bool) -> None:
        self._parameters = parameters if gradients else []
        self._host: torch.Tensor | None = None

    def look(self, losses: Sequence[Any]) -> Seen:
        gradients = [local_part(each.grad) for each in self._parameters if each.grad is not None]
        sums = [_sum(gradients)] if gradients else []
        values = self._on_host([*losses, *sums])
        count = 0
        if sums and not math.isfinite(values[-1]):  # the sum of large gradients may be infinite too
            count = sum(int((~gradient.isfinite()).sum()) for gradient in gradients)
        return Seen(values[: len(losses)], count)

    def _on_host(self, values: list[Any]) -> list[float]:
        import torch

        device = next((value.device for value in reversed(values) if torch.is_tensor(value)), torch.device("cpu"))
        if device.type != "cuda":
            return [float(value) for value in values]
        packed = torch.stack([torch.as_tensor(value, dtype=torch.float64, device=device) for value in values])
        if self._host is None or len(self._host) != len(values):
            self._host = torch.empty(len(values), dtype=torch.float64, pin_memory=True)
        self._host.copy_(packed, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        event.synchronize()
        return [float(value) for value in self._host.tolist()]


def local_part(gradient: Any) -> Any:
    """This rank's part of a sharded gradient, and the values of a sparse one."""
    part = gradient.to_local() if hasattr(gradient, "to_local") else gradient
    return part._values() if part.is_sparse else part


def _sum(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """NaN or Inf if any element is, and in rare cases for finite ones; never in half precision."""
    import torch

    if gradients[0].is_cuda:
        # One pass in few kernels; the norms of float16 would overflow at 65504.
        norms = torch._foreach_norm([each.float() if each.dtype is torch.float16 else each for each in gradients], 2)
        return torch.stack([norm.double() for norm in norms]).sum()
    # torch 2.13 on CPU takes ten times as long for norms as for sums.
    wide = {torch.float16: torch.float32}
    sums = [each.sum(dtype=wide.get(each.dtype)) for each in gradients]
    return torch.stack(sums if len({each.dtype for each in sums}) == 1 else [each.double() for each in sums]).sum()
