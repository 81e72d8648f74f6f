"""Slurm's time limits, in every form that sbatch takes."""

from __future__ import annotations

import math

import pytest

from nemo_resiliency_plugins.slurm.durations import seconds


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30", 1800),
        ("30:15", 1815),
        ("1:30:00", 5400),
        ("00:00:59", 59),
        ("2-12", 216000),
        ("1-00:01", 86460),
        ("1-02:03:04", 93784),
        ("UNLIMITED", math.inf),
        ("0", math.inf),
        ("00:00:00", math.inf),
        ("soon", None),
        ("", None),
    ],
)
def test_time_limits(text: str, expected: float | None) -> None:
    assert seconds(text) == expected
