"""``python -m tests.slurm.testbed up|down|status|env [--root DIR]``"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from pathlib import Path

from tests.slurm.testbed.cluster import DEFAULT_ROOT, Cluster
from tests.slurm.testbed.packages import TestbedError


def up(cluster: Cluster) -> int:
    if cluster.running:
        return status(cluster)
    began = time.monotonic()
    cluster.start()
    print(f'up in {time.monotonic() - began:.1f} s: eval "$(python -m tests.slurm.testbed env)"')
    return 0


def down(cluster: Cluster) -> int:
    cluster.stop()
    return 0


def status(cluster: Cluster) -> int:
    if not cluster.running:
        print(f"down: {cluster.layout.root}")
        return 1
    print(cluster.run("sinfo") + cluster.run("squeue"), end="")
    return 0


def env(cluster: Cluster) -> int:
    for name, value in cluster.variables.items():
        print(f"export {name}={shlex.quote(value)}")
    return 0


def main() -> int:
    verbs = {verb.__name__: verb for verb in (up, down, status, env)}
    parser = argparse.ArgumentParser(
        prog="python -m tests.slurm.testbed", description="A Slurm cluster on this machine."
    )
    parser.add_argument("verb", choices=verbs)
    parser.add_argument("--root", type=Path, default=DEFAULT_ROOT, help=f"default: {DEFAULT_ROOT}")
    arguments = parser.parse_args()
    try:
        return verbs[arguments.verb](Cluster(arguments.root))
    except TestbedError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
