"""Megatron-Bridge, unpacked as far as it runs without Megatron: its plugins, callbacks and fault tolerance."""

from __future__ import annotations

import ast
import tempfile
import zipfile
from pathlib import Path

from tests.versions.unpacked import DIRECTORY, once, pip

VERSIONS = ("0.3.1", "0.3.0")
"""The newest first."""
BRIDGE = "megatron/bridge"
AS_THEY_ARE = (
    "recipes/run_plugins.py",
    "training/callbacks.py",
    "training/fault_tolerance.py",
    "training/utils/sig_utils.py",
    "utils/common_utils.py",
    "utils/import_utils.py",
    "utils/slurm_utils.py",
)
ONLY_TO_READ = ("training/config.py", "training/state.py", "training/train.py")
"""Kept with another ending: importing them would load Megatron."""
STAND_INS = {
    "megatron/core/__init__.py": "class DistributedDataParallel: ...\n",
    "megatron/core/transformer/module.py": "class Float16Module: ...\n",
    f"{BRIDGE}/training/config.py": "ConfigContainer = FaultToleranceConfig = object\n",
    f"{BRIDGE}/training/state.py": "GlobalState = object\n",
}
"""What those import for the names of types alone."""


def python_path(version: str) -> Path:
    """A directory from which the parts of ``version`` can be imported."""
    return once(DIRECTORY / f"megatron-bridge-{version}", lambda target: _unpack(version, target))


def source(version: str, name: str) -> str:
    """The text of a file of the package, such as ``training/train.py``."""
    path = python_path(version) / BRIDGE / name
    return (path.with_suffix(".txt") if name in ONLY_TO_READ else path).read_text()


def definition(version: str, name: str, of: str) -> str:
    """The text of the class or function ``of`` at the top of a file."""
    text = source(version, name)
    [node] = [node for node in ast.parse(text).body if getattr(node, "name", None) == of]
    decorators = [f"@{ast.unparse(each)}" for each in getattr(node, "decorator_list", [])]
    return "\n".join([*decorators, str(ast.get_source_segment(text, node))])


def _unpack(version: str, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as downloads:
        pip("download", "--no-deps", "--only-binary=:all:", f"--dest={downloads}", f"megatron-bridge=={version}")
        [wheel] = Path(downloads).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            for name in (*AS_THEY_ARE, *ONLY_TO_READ):
                path = target / BRIDGE / name
                _write(path.with_suffix(".txt") if name in ONLY_TO_READ else path, archive.read(f"{BRIDGE}/{name}"))
    for name, text in STAND_INS.items():
        _write(target / name, text.encode())


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
