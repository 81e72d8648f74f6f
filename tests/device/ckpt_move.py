"""A checkpoint of several GPUs is read by one, and holds the same values.

Run by torchrun on several GPUs to save, then by ``python -m tests.device.ckpt_move`` alone to read, with one root.
Reading prints a line of JSON; an exit code other than 0 means that the values differ.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from tests.device.ckpt_async import Training

STEP = 1


def digest(training: Training) -> str:
    """Of whole tensors, so that it does not depend on how they are sharded."""
    total = hashlib.sha256()
    for parameter in training.model.parameters():
        for value in (parameter, *training.optimizer.state[parameter].values()):
            whole = value.full_tensor() if isinstance(value, DTensor) else value
            total.update(whole.detach().cpu().contiguous().numpy().tobytes())
    return total.hexdigest()


def save(training: Training, root: Path) -> None:
    expected = digest(training)
    saving = training.checkpointer(root, async_save=True)
    saving.save(STEP, None)
    saving.drain()
    saving.close()
    if dist.get_rank() == 0:
        (root / "digest.txt").write_text(expected)


def read(training: Training, root: Path) -> bool:
    resumed = training.checkpointer(root).resume()
    equal = (resumed, digest(training)) == (STEP, (root / "digest.txt").read_text())
    print(json.dumps({"resumed": resumed, "equal_on_one": equal}))
    return equal


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gb", type=float, default=2.0, help="size of the whole state")
    parser.add_argument("--root", type=Path, required=True)
    options = parser.parse_args()
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    launched = "RANK" in os.environ
    store = {} if launched else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group("cpu:gloo,cuda:nccl", **store)
    training = Training(options.gb)
    if launched:
        save(training, options.root)
        good = True
    else:
        training.step()
        good = read(training, options.root)
    dist.destroy_process_group()
    raise SystemExit(not good)


if __name__ == "__main__":
    main()
