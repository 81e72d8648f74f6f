"""Rank 1 raises while rank 0 sleeps for ten minutes."""

from __future__ import annotations

import time

import tiny

from nemo_resiliency_plugins import runtime

with runtime.session() as session:
    for step in session.steps(0, 3):
        tiny.log_step(step)
        if tiny.RANK == 1:
            raise RuntimeError("the shard is unreadable")
        time.sleep(600)
