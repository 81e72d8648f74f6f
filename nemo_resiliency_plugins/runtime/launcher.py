"""``python -m nemo_resiliency_plugins.runtime.launcher [--shield SIGNALS] [--prestart PACKAGES] LAUNCHER ARGUMENTS``.

Runs a launcher that the signals do not reach, that takes the ranks of a restart from processes started ahead, and
whose nodes meet without long pauses.

At a preemption Slurm signals every process of the step. A launcher would die of some signals and cut its ranks short
after others; here they stay pending, which also tells the ranks that Slurm was the sender. The ranks take the block
off themselves. NVRx 0.4.1 ends the monitors that it forks by SIGTERM and waits for them without limit, so forked
children are not shielded.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import runpy
import signal
import sys

from nemo_resiliency_plugins.compat import rendezvous_pause
from nemo_resiliency_plugins.runtime.prestart.pool import prestarted
from nemo_resiliency_plugins.runtime.rendezvous import node_count


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--shield", type=lambda names: names.split(","), default=[])
    parser.add_argument("--prestart", type=lambda names: names.split(","), default=[])
    parser.add_argument("launcher", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    shield({signal.Signals[name] for name in options.shield})
    sys.argv = options.launcher
    rendezvous_pause.shorten(sys.argv[0], node_count(os.environ))
    with prestarted(options.prestart) if options.prestart else contextlib.nullcontext():
        runpy.run_path(sys.argv[0], run_name="__main__")


def shield(signals: set[signal.Signals]) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    os.register_at_fork(after_in_child=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, signals))


if __name__ == "__main__":
    main()
