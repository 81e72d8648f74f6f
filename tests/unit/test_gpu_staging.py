"""How NVRx's process is used, with a stand-in for it: the real one needs a GPU, see tests/device/ckpt_async.py."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from nemo_resiliency_plugins.compat.nvrx import WorkerLost
from nemo_resiliency_plugins.errors import CheckpointError
from nemo_resiliency_plugins.runtime.agreement import Ranks
from nemo_resiliency_plugins.runtime.checkpoint import gpu_staging
from nemo_resiliency_plugins.runtime.checkpoint.gpu_staging import GpuStaging
from nemo_resiliency_plugins.runtime.checkpoint.state import Content


class Worker:
    """Stands in for NVRx's; ``answer`` is what its writer returns, or raises."""

    answer: Any = []
    made: list[Worker]

    def __init__(self) -> None:
        self.closed = False
        self.made.append(self)

    def plan(self, state: dict[str, Any], path: Path, planner: Any, group: Any) -> tuple[Any, Any]:
        self.state = state
        return self, "metadata"

    def start(self, writer: Any, timeout_s: float) -> None:
        pass

    def wait(self, timeout_s: float) -> None:
        if isinstance(self.answer, WorkerLost):
            raise self.answer

    def retrieve_write_results(self) -> Any:
        if isinstance(self.answer, RuntimeError):
            raise self.answer
        return self.answer

    def finish(self, metadata: Any, results: list[Any]) -> None:
        self.finished = (metadata, results)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield Ranks()
    dist.destroy_process_group()


@pytest.fixture
def staging(monkeypatch: pytest.MonkeyPatch) -> GpuStaging:
    monkeypatch.setattr(gpu_staging, "CheckpointWorker", Worker)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(Worker, "made", [], raising=False)
    return GpuStaging(1.0)


def write(staging: GpuStaging, tmp_path: Path, ranks: Ranks) -> list[Path]:
    content = staging.copy(Content({"step": torch.ones(1)}, {"a": 1}))
    assert content.write is not None
    return content.write(tmp_path, content, ranks)


def test_what_is_on_the_cpu_is_copied_and_the_results_are_finished(
    staging: GpuStaging, tmp_path: Path, ranks: Ranks
) -> None:
    assert write(staging, tmp_path, ranks) == [tmp_path / ".metadata"]
    [worker] = Worker.made
    assert worker.finished == ("metadata", [[]])
    assert set(worker.state) == {"step", "host.rank00000"}
    assert staging.await_copied(threading.current_thread(), 0.0)


@pytest.mark.parametrize(
    "answer", [RuntimeError("no space"), (OSError("no space"), "trace")], ids=["raised", "returned"]
)
def test_an_error_of_the_worker_is_a_checkpoint_error(
    staging: GpuStaging, tmp_path: Path, ranks: Ranks, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    monkeypatch.setattr(Worker, "answer", answer)
    with pytest.raises(CheckpointError, match="no space"):
        write(staging, tmp_path, ranks)


def test_a_lost_worker_is_an_error_and_is_replaced(
    staging: GpuStaging, tmp_path: Path, ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Worker, "answer", WorkerLost("it has died"))
    with pytest.raises(CheckpointError, match="it has died"):
        write(staging, tmp_path, ranks)
    assert [worker.closed for worker in Worker.made] == [True, False]


def test_the_training_is_not_held_by_a_writer_that_has_ended(staging: GpuStaging) -> None:
    staging.copy(Content({}, {}))
    ended = threading.Thread()
    ended.start()
    ended.join()
    assert staging.await_copied(ended, 60.0)
    assert not staging.await_copied(threading.current_thread(), 0.0)
