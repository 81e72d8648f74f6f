"""``python -m nemo_resiliency_plugins.runtime.shield SIGNALS LAUNCHER ARGUMENTS``: a launcher that no signal reaches.

At a preemption Slurm signals every process of the step. A launcher would die of some signals and cut its ranks short
after others; here they stay pending, which also tells the ranks that Slurm was the sender. The ranks take the block
off themselves. NVRx 0.4.1 ends the monitors that it forks by SIGTERM and waits for them without limit, so forked
children are not shielded.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys


def main(arguments: list[str]) -> None:
    signals = {signal.Signals[name] for name in arguments[0].split(",")}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    os.register_at_fork(after_in_child=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, signals))
    sys.argv = arguments[1:]
    runpy.run_path(arguments[1], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
