"""Copies of GPU tensors made and written by NVRx's persistent process, so that no thread of the training writes.

Of NVRx's machinery (0.4.1 to 0.7.0) this leaves out its collectives on CUDA tensors, its waits without a bound, its
cache of plans, and writes by several processes, which a daemonic worker cannot start.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from nemo_resiliency_plugins.compat.nvrx import CheckpointWorker, WorkerLost
from nemo_resiliency_plugins.errors import CheckpointError
from nemo_resiliency_plugins.runtime.agreement import Ranks
from nemo_resiliency_plugins.runtime.checkpoint import dcp
from nemo_resiliency_plugins.runtime.checkpoint.staging import Staging
from nemo_resiliency_plugins.runtime.checkpoint.state import Content

LOOK_S = 0.2


class GpuStaging(Staging):
    """What is on the GPU is copied by the worker while the training waits; what is on the CPU is copied here.

    NVRx shares CPU tensors with its worker instead of copying them (0.4.1 to 0.7.0): an optimizer's step count on the
    CPU would be that of a later step.
    """

    def __init__(self, timeout_s: float) -> None:
        super().__init__()
        self._worker = CheckpointWorker()
        self._timeout_s = timeout_s
        self._released = threading.Event()

    def copy(self, content: Content) -> Content:
        self._released.clear()
        on_gpu = {name: tensor for name, tensor in content.tensors.items() if tensor.is_cuda}
        rest = {name: tensor for name, tensor in content.tensors.items() if name not in on_gpu}
        copied = super().copy(Content(rest, content.host))
        torch.cuda.synchronize()  # the worker copies on a stream of its own
        return Content({**on_gpu, **copied.tensors}, copied.host, self._write)

    def await_copied(self, writer: threading.Thread, timeout_s: float) -> bool:
        end = time.monotonic() + timeout_s
        while not self._released.wait(LOOK_S) and writer.is_alive():
            if time.monotonic() > end:
                return False
        return True

    def close(self) -> None:
        self._worker.close()

    def _write(self, path: Path, content: Content, ranks: Ranks) -> list[Path]:
        with dcp.reporting(path):
            writer, metadata = self._worker.plan(dcp.flat(content, ranks), path, dcp.planner(), ranks.group)
        results: list[Any] = [None] * ranks.world_size
        dist.all_gather_object(results, self._results(writer), group=ranks.group)
        problem = next((result for result in results if isinstance(result, str)), None)
        if problem is not None:
            raise CheckpointError(f"{path}: {problem}")
        ranks.decide(lambda: writer.finish(metadata, results))
        return dcp.files_of(path, ranks)

    def _results(self, writer: Any) -> Any:
        """What NVRx needs to know of the written files, or in words why it is not there."""
        try:
            self._worker.start(writer, self._timeout_s)
            self._released.set()
            self._worker.wait(self._timeout_s)
            results = writer.retrieve_write_results()
        except WorkerLost as error:
            self._worker.close()
            self._worker = CheckpointWorker()
            return str(error)
        except RuntimeError as error:
            return str(error)
        return results if isinstance(results, list) else str(results[0])  # 0.5.0 and later return their error
