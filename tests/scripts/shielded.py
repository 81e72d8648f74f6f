"""Starts a launcher as a node script does: with the signals of a preemption blocked, in it and not in its children.

``python shielded.py LAUNCHER ARGUMENTS``, where LAUNCHER is one of this environment's scripts.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys

SIGNALS = {signal.SIGTERM}

signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
os.register_at_fork(after_in_child=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
