from __future__ import annotations

import io
import os
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save

from nemo_resiliency_plugins.errors import CheckpointError
from nemo_resiliency_plugins.runtime.checkpoint import checksums
from nemo_resiliency_plugins.runtime.checkpoint.manager import DcpCheckpointer
from nemo_resiliency_plugins.runtime.checkpoint.safe_load import MetadataUnpickler, SafeReader
from nemo_resiliency_plugins.runtime.checkpoint.store import CheckpointStore
from tests.unit.conftest import open_checkpointer


class Hostile:
    """Makes a directory when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.trace),)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return tmp_path / "was-run"


@pytest.fixture
def checkpointer(tmp_path: Path) -> DcpCheckpointer:
    return open_checkpointer(tmp_path / "checkpoints", {"model": nn.Linear(2, 2)})


def newest(tmp_path: Path) -> Path:
    return CheckpointStore(tmp_path / "checkpoints", keep=2).path(3)


def recommit(tmp_path: Path) -> None:
    """Let the manifest agree with the planted files."""
    files = [path for path in newest(tmp_path).iterdir() if path.name not in ("manifest.json", "COMMITTED")]
    CheckpointStore(tmp_path / "checkpoints", keep=2).commit(3, checksums.of_files(files), world_size=1)


def test_hostile_metadata_is_refused_and_not_run(checkpointer: DcpCheckpointer, tmp_path: Path, trace: Path) -> None:
    checkpointer.save(3, None)
    (newest(tmp_path) / ".metadata").write_bytes(pickle.dumps(Hostile(trace)))
    recommit(tmp_path)
    with pytest.raises(CheckpointError, match="mkdir is not allowed"):
        checkpointer.resume()
    assert not trace.exists()


def test_hostile_bytes_are_refused_and_not_run(checkpointer: DcpCheckpointer, tmp_path: Path, trace: Path) -> None:
    weights = {f"model.{name}": value for name, value in nn.Linear(2, 2).state_dict().items()}
    planted = {**weights, "host.rank00000": {"model": Hostile(trace)}}
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    with pytest.warns(UserWarning, match=r"single process"):
        save(planted, storage_writer=FileSystemWriter(newest(tmp_path)), planner=planner)
    recommit(tmp_path)
    with pytest.raises(CheckpointError):
        checkpointer.resume()
    assert not trace.exists()


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 64, b"cos\nsystem\n(S'true'\ntR.", b"\x80\x04", b"(lp0\n.", b"\x80\x02]q\x00."]
)
def test_broken_metadata_is_a_checkpoint_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".metadata").write_bytes(content)
    with pytest.raises(CheckpointError):
        SafeReader(tmp_path).read_metadata()


@pytest.mark.parametrize("name", ["load", "jit.load", "hub", "serialization.load", "float"])
def test_nothing_of_torch_but_what_metadata_needs_is_allowed(name: str) -> None:
    module, _, attribute = f"torch.{name}".rpartition(".")
    allowed = isinstance(getattr(torch, name, None), torch.dtype)
    unpickler = MetadataUnpickler(io.BytesIO())
    if allowed:
        assert unpickler.find_class(module, attribute) is torch.float
    else:
        with pytest.raises(pickle.UnpicklingError, match="is not allowed"):
            unpickler.find_class(module, attribute)


def test_a_save_that_fails_is_a_checkpoint_error_and_leaves_the_last_one(
    checkpointer: DcpCheckpointer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    checkpointer.save(3, None)
    monkeypatch.setattr(FileSystemWriter, "write_data", full)
    with pytest.raises(CheckpointError, match="No space left"):
        checkpointer.save(6, None)
    assert checkpointer.resume() == 3


def test_a_damaged_tensor_file_is_a_checkpoint_error(checkpointer: DcpCheckpointer, tmp_path: Path) -> None:
    checkpointer.save(3, None)
    for path in newest(tmp_path).glob("*.distcp"):
        path.write_bytes(b"\0" * path.stat().st_size)
    with pytest.raises(CheckpointError):
        checkpointer.resume()
