"""Holds the interpreter lock longer than the step limit: plainly, then in a pause; each cycle goes further."""

from __future__ import annotations

import ctypes
import sys

import tiny

from nemo_resiliency_plugins import runtime

HOLD_S = float(sys.argv[1])


def hold_the_interpreter() -> None:
    """A C call through PyDLL keeps the interpreter lock: no other thread runs."""
    ctypes.PyDLL(None).usleep(int(HOLD_S * 1e6))


def paused_and_raising(session: runtime.Session) -> None:
    try:
        with session.pause():
            raise LookupError("in a pause")
    except LookupError:
        tiny.say("raised in a pause")


def work(session: runtime.Session) -> None:
    if tiny.CYCLE == 0:
        hold_the_interpreter()
        tiny.say("survived a plain hold")
    if tiny.CYCLE == 1:
        with session.pause():
            hold_the_interpreter()
        tiny.say("survived a paused hold")
        paused_and_raising(session)
        hold_the_interpreter()
        tiny.say("survived a hold after the pause")


with runtime.session() as session:
    for step in session.steps(0, 3):
        tiny.log_step(step)
        if step == 1:
            work(session)
tiny.say("done")
