"""A Slurm cluster on one machine: real daemons, three nodes, accounting, and a stand-in for pyxis.

It runs as root on Debian, without systemd, and keeps everything under one directory; nothing in /etc is changed.
From a shell: ``python -m tests.slurm.testbed up``, then ``eval "$(python -m tests.slurm.testbed env)"``.
From pytest: the fixture ``cluster``.
"""

from __future__ import annotations

from tests.slurm.testbed.client import SlurmError
from tests.slurm.testbed.cluster import Cluster
from tests.slurm.testbed.packages import TestbedError

__all__ = ["Cluster", "SlurmError", "TestbedError"]
