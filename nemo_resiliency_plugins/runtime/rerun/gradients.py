"""Whether gradients hold NaN or Inf: the device is asked before the host waits for anything."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from nemo_resiliency_plugins.runtime.agreement import Ranks


LARGE = 2**24
"""Elements from which on one gradient keeps an H200 busy: 1 GB of 2**26 is summed in 0.31 ms, their norms take 0.5."""


class GradientCheck:
    """Creating it is a collective.

    Where all ranks train on GPUs and NCCL connects them, they agree there: it takes less time than among the hosts, and
    waits for nobody for whom the reduction of the gradients has not waited.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], ranks: Ranks) -> None:
        self._parameters = parameters
        on_device = bool(parameters) and all(each.is_cuda for each in parameters)
        self.is_agreed = all(ranks.gather(on_device and (ranks.alone or _has_nccl())))
        """Whether :meth:`is_suspect` says the same on all ranks."""
        self._reduces = self.is_agreed and ranks.world_size > 1
        self._sum: torch.Tensor | None = None

    def begin(self) -> None:
        """Queue it. Collective on the device where :attr:`is_agreed`."""
        import torch
        import torch.distributed as dist

        gradients = self._gradients()
        if gradients:
            self._sum = sum_of(gradients)
        elif self._parameters:
            self._sum = torch.zeros((), dtype=torch.float64, device=self._parameters[0].device)
        if self._reduces:
            dist.all_reduce(self._sum)

    def is_suspect(self) -> bool:
        """Whether there is NaN or Inf, or in rare cases a sum of large finite ones; waits for the device."""
        return self._sum is not None and not math.isfinite(float(self._sum))

    def count(self) -> int:
        """How many elements of this rank's gradients are NaN or Inf."""
        return sum(int((~gradient.isfinite()).sum()) for gradient in self._gradients())

    def _gradients(self) -> list[torch.Tensor]:
        return [local_part(each.grad) for each in self._parameters if each.grad is not None]


def local_part(gradient: Any) -> Any:
    """This rank's part of a sharded gradient, the values of a sparse one, and complex ones as pairs."""
    import torch

    part = gradient.to_local() if hasattr(gradient, "to_local") else gradient
    part = part._values() if part.is_sparse else part
    return torch.view_as_real(part) if part.is_complex() else part


def _has_nccl() -> bool:
    import torch.distributed as dist

    return "cuda:nccl" in dist.get_backend_config()


def sum_of(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """On the device of the first one: NaN or Inf if any element is, and in rare cases for large finite ones."""
    import torch

    sums = (_sum_of_alike([each for each in gradients if _kind(each) == kind]) for kind in {*map(_kind, gradients)})
    return torch.stack([each.to(gradients[0].device) for each in sums]).sum()


def _kind(gradient: torch.Tensor) -> tuple[torch.device, torch.dtype]:
    return gradient.device, gradient.dtype


def _sum_of_alike(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """Of gradients of one device and type; never in half precision, whose range is too small."""
    import torch

    wide = torch.float32 if gradients[0].dtype in (torch.float16, torch.bfloat16) else None
    together = [each for each in gradients if _goes_with_others(each)]
    norms = list(torch._foreach_norm(together, 2)) if together else []
    sums = [each.sum(dtype=wide) for each in gradients if not _goes_with_others(each)]
    totals = [torch.stack(each).sum(dtype=torch.float64) for each in (norms, sums) if each]
    return sum(totals[1:], totals[0])


def _goes_with_others(gradient: torch.Tensor) -> bool:
    """Whether norms of many in few kernels take less time than sums: seen on an H200, and not on CPUs (torch 2.13)."""
    import torch

    return gradient.is_cuda and gradient.numel() < LARGE and gradient.dtype is not torch.float16
