"""Throwaway passes that make a restarted DDP model sum its gradients as the undisturbed one does.

DDP rebuilds its gradient buckets after its first backward pass, and with three ranks or more the new order of
summing gives other last bits. Two passes at every start put that behind the first real step (torch 2.13, gloo:
measured equal then on 4 ranks, and different without).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from nemo_resiliency_plugins.errors import ConfigError
from nemo_resiliency_plugins.runtime import rng

if TYPE_CHECKING:
    import torch

PASSES = 2


def settle(models: Sequence[torch.nn.Module], forward_backward: Callable[[], object]) -> None:
    """Run ``forward_backward`` twice and undo what it changed: gradients, buffers and random numbers.

    It must do the forward and backward pass of one step on a fixed batch, and must not step the optimizer.

    Raises:
        ConfigError: nothing was attached.
    """
    import torch

    if not models:
        raise ConfigError("session.settle", "no module", "needs attached modules", "Call attach(state=...) first.")
    before = rng.capture()
    buffers = [
        (part, name, buffer, buffer.detach().clone())
        for model in models
        for part in model.modules()
        for name, buffer in part.named_buffers(recurse=False)
    ]
    parameters = [parameter for model in models for parameter in model.parameters()]
    gradients = [parameter.grad for parameter in parameters]
    for _ in range(PASSES):
        for parameter in parameters:
            parameter.grad = None
        forward_backward()
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    with torch.no_grad():
        for part, name, buffer, value in buffers:
            setattr(part, name, buffer)  # a forward pass may have put another tensor in its place
            buffer.copy_(value)
    rng.restore(before)
