"""The trainer on nodes with a disk each for the local tier; ``TEST_LOSE`` says when which nodes lose theirs.

``30:n2/40:n1,n2`` takes that of n2 at the first start after step 30, and both at the first one after step 40.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import tiny
import trainer

from nemo_resiliency_plugins.contract import variable

NODE = os.environ["SLURMD_NODENAME"]
DISK = tiny.ROOT / "local" / NODE


def lose() -> None:
    for step in due():
        marker = tiny.ROOT / f"lost-{step}-{NODE}"
        if not marker.exists():
            marker.touch()
            tiny.say(f"after {step}: {NODE} loses {len(list(DISK.glob('*/step_*/*.pt')))} shards")
            shutil.rmtree(DISK)


def due() -> Iterator[int]:
    """The steps that are behind the training, and after which this node loses its disk."""
    path = tiny.ROOT / "steps-0.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    reached = int(lines[-1].split()[1]) if lines else 0
    losses = (each.split(":") for each in os.environ.get("TEST_LOSE", "").split("/") if each)
    return (int(step) for step, nodes in losses if NODE in nodes.split(",") and reached >= int(step))


if os.environ["LOCAL_RANK"] == "0":
    lose()  # none of the node's ranks looks there before all have met in init_process_group
os.environ[variable("checkpoint", "non_persistent_local_ckpt_dir")] = str(DISK)
trainer.main()
