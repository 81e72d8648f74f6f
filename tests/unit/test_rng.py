from __future__ import annotations

import io
import random

import numpy
import torch

from nemo_resiliency_plugins.runtime import rng


def draw() -> list[object]:
    return [random.random(), random.gauss(0, 1), *numpy.random.randn(3), *torch.randn(3).tolist()]


def test_restored_generators_go_on_as_they_would_have() -> None:
    draw()
    state = rng.capture()
    expected = draw()
    rng.restore(state)
    assert draw() == expected


def test_the_state_passes_a_load_that_runs_no_code() -> None:
    file = io.BytesIO()
    torch.save(rng.capture(), file)
    expected = draw()
    file.seek(0)
    rng.restore(torch.load(file, weights_only=True))
    assert draw() == expected
