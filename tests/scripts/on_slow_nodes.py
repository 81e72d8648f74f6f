"""Ends with a straggler verdict for as long as the job is on one of the named nodes, as a session does."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from nemo_resiliency_plugins.contract import Reason, Verdict
from nemo_resiliency_plugins.runtime.identity import Identity

me = Identity.from_env()
assert me.directory is not None
slow = set(sys.argv[1:])
with Path(os.environ["TEST_ROOT"], "nodes.txt").open("a") as file:
    file.write(f"{me.attempt.name.partition('-')[2]} {me.node}\n")
if me.node in slow:
    Verdict(Reason.STRAGGLER, 0, 3, me.rank, me.node).write(me.directory, me.attempt)
