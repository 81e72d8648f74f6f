"""Megatron-Core's own random numbers on a GPU: put back before a repetition, and restored from a checkpoint.

Run where megatron-core is installed: ``python -m tests.device.megatron_rng``. Fails where it does not hold.
"""

from __future__ import annotations

import importlib

import torch

from nemo_resiliency_plugins.runtime import rng


def check(*, graph_safe: bool) -> None:
    megatron = importlib.import_module(rng.MEGATRON)
    megatron.initialize_rng_tracker(use_cudagraphable_rng=graph_safe, force_reset=True)
    megatron.get_cuda_rng_tracker().add("model-parallel-rng", 7)

    def drawn() -> list[float]:
        with megatron.get_cuda_rng_tracker().fork():
            inside = torch.rand(3, device="cuda").tolist()
        return [*inside, *torch.rand(3, device="cuda").tolist()]

    drawn()
    in_memory, in_a_checkpoint = rng.Generators(), rng.capture()
    first = drawn()
    assert drawn() != first
    for _ in range(2):
        in_memory.put_back()
        assert drawn() == first
    rng.restore(in_a_checkpoint)
    assert drawn() == first


if __name__ == "__main__":
    torch.cuda.init()
    check(graph_safe=False)
    check(graph_safe=True)
    print("the trackers' numbers come again")
