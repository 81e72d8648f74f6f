"""What a save of a large state costs a training on one GPU: stock DCP, NVRx's own example use, and the session's.

Run on a machine with a GPU: ``python -m tests.device.ckpt_compare --gb 19``. Prints one line of JSON for each way of
saving (seconds; ``step_ratio``: a step while writing against an undisturbed one), which it adds to ``build/bench.json``
(``ckpt.gpu.*``), and then kills the process that writes: an exit code other than 0 means that this was no error within
seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from nvidia_resiliency_ext.checkpointing.async_ckpt.core import AsyncCallsQueue, AsyncRequest
from nvidia_resiliency_ext.checkpointing.async_ckpt.filesystem_async import FileSystemWriterAsync
from nvidia_resiliency_ext.checkpointing.async_ckpt.state_dict_saver import (
    save_state_dict_async_finalize,
    save_state_dict_async_plan,
)
from torch.distributed.checkpoint import DefaultSavePlanner
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.checkpoint.state_dict_saver import async_save, save

from nemo_resiliency_plugins.errors import CheckpointError
from tests.benchmarks import report
from tests.device.ckpt_async import Training

WITH_BUFFERS = ("ours_async", "nvrx")
"""These save twice: the first time they fill buffers that stay."""
Scheduled = tuple[Callable[[], bool], Callable[[], object]]
"""Whether a save is still being written, and how to wait for it."""


def stock_state(training: Training) -> dict[str, Any]:
    return {
        "model": get_model_state_dict(training.model),
        "optimizer": get_optimizer_state_dict(training.model, training.optimizer),
    }


def stock_sync(training: Training, root: Path) -> Callable[[int], Scheduled]:
    def once(number: int) -> Scheduled:
        save(stock_state(training), checkpoint_id=root / f"{number}")
        return (lambda: False), (lambda: None)

    return once


def stock_async(training: Training, root: Path) -> Callable[[int], Scheduled]:
    group = dist.new_group(backend="gloo")

    def once(number: int) -> Scheduled:
        future = async_save(stock_state(training), checkpoint_id=root / f"{number}", process_group=group)
        assert isinstance(future, Future)
        return (lambda: not future.done()), future.result

    return once


def nvrx(training: Training, root: Path) -> Callable[[int], Scheduled]:
    """Plan, hand over, finalise: in the order in which NVRx's documentation has them."""
    queue = AsyncCallsQueue(persistent=True)

    def once(number: int) -> Scheduled:
        path = root / f"{number}"
        path.mkdir()
        writer = FileSystemWriterAsync(path)
        planned = save_state_dict_async_plan(stock_state(training), writer, None, 0, planner=DefaultSavePlanner())
        function, preload, arguments = writer.get_save_function_and_args()
        finalize = partial(save_state_dict_async_finalize, *planned)
        queue.schedule_async_request(AsyncRequest(function, arguments, [finalize], {}, preload))

        def busy() -> bool:
            queue.maybe_finalize_async_calls(blocking=False)
            return bool(queue.get_num_unfinalized_calls())

        return busy, partial(queue.maybe_finalize_async_calls, blocking=True)

    return once


def ours(training: Training, root: Path) -> Callable[[int], Scheduled]:
    checkpointer = training.checkpointer(root, async_save=True)

    def once(number: int) -> Scheduled:
        checkpointer.save(number, None)
        thread = checkpointer._saver._writer  # type: ignore[attr-defined]
        return thread.is_alive, checkpointer.drain

    return once


VARIANTS = {"ours_async": ours, "nvrx": nvrx, "dcp_async_save": stock_async, "dcp_save": stock_sync}


def measure(variant: str, training: Training, root: Path) -> dict[str, float]:
    """Of the last save."""
    once = VARIANTS[variant](training, root)
    alone = statistics.median(training.step() for _ in range(20))
    for number in range(2 if variant in WITH_BUFFERS else 1):
        began = time.perf_counter()
        busy, wait = once(number)
        stall = time.perf_counter() - began
        steps = []
        while busy():
            steps.append(training.step())
        wait()
        durable = time.perf_counter() - began
    ratio = {"step_ratio": round(statistics.median(steps[:-1]) / alone, 3)} if len(steps) > 1 else {}
    return {"stall_s": round(stall, 3), "durable_s": round(durable, 2), **ratio}


def seconds_until_a_dead_writer_is_an_error(training: Training, root: Path) -> float:
    checkpointer = training.checkpointer(root, async_save=True, drain_timeout_s=120)
    checkpointer.save(1, None)
    process = checkpointer._saver._stagings["global"]._worker._queue.persistent_caller.process  # type: ignore[attr-defined]
    process.kill()
    began = time.perf_counter()
    try:
        checkpointer.drain()
    except CheckpointError as error:
        print(json.dumps({"dead_writer": str(error)}))
        return time.perf_counter() - began
    finally:
        checkpointer.close()
    return float("inf")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gb", type=float, default=2.0, help="size of the whole state")
    parser.add_argument("--output", type=Path, default=Path("build/bench.json"))
    parser.add_argument("--variants", nargs="*", choices=VARIANTS, default=list(VARIANTS))
    options = parser.parse_args()
    code = 1
    try:
        code = compare(options.gb, options.variants, options.output)
    finally:
        if sys.exc_info()[0] is not None:
            traceback.print_exc()
        os._exit(code)  # NVRx's processes would keep this one alive


def compare(gb: float, variants: list[str], output: Path) -> int:
    """The exit code."""
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("cpu:gloo,cuda:nccl", store=dist.HashStore(), rank=0, world_size=1)
    training = Training(gb)
    for variant in variants:
        root = Path(tempfile.mkdtemp(dir="/dev/shm"))
        times = measure(variant, training, root)
        print(json.dumps({"gb": gb, "variant": variant, **times}), flush=True)
        report.save(output, {f"ckpt.gpu.{variant}.{name}": [value] for name, value in times.items()}, {}, {})
        shutil.rmtree(root)
    seconds = seconds_until_a_dead_writer_is_an_error(training, Path(tempfile.mkdtemp(dir="/dev/shm")))
    print(json.dumps({"seconds_until_error": round(seconds, 2)}), flush=True)
    return int(seconds > 20)


if __name__ == "__main__":
    main()
