"""The versions of nvidia-resiliency-ext, unpacked: pip installs the later ones on newer systems only, but they run."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

VERSIONS = ("0.4.1", "0.5.0", "0.6.0", "0.7.0")
DIRECTORY = Path(__file__).parents[2] / "build" / "versions"
OWN_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
ONLY_FOR = {"0.7.0": "3.12"}
"""Wheels that there are for one Python alone; the Python code in them runs under others too."""
DEPENDENCIES = (
    "nv-one-logger-core",
    "nv-one-logger-training-telemetry",
    "nvidia-ml-py",
    "grpcio",
    "grpcio-tools",
    "httpx",
    "defusedxml",
    "fastapi",
    "uvicorn",
    "slowapi",
    "pydantic-settings",
)
DEADLINE_S = 240.0
_ONE_AT_A_TIME = threading.Lock()


def python_path(version: str) -> str:
    """The ``PYTHONPATH`` under which ``version`` takes the place of the installed one."""
    with _ONE_AT_A_TIME:
        unpacked = once(DIRECTORY / version, lambda target: _unpack(version, target))
        dependencies = once(DIRECTORY / f"deps-{OWN_PYTHON}", _install_dependencies)
    return os.pathsep.join(map(str, (unpacked, dependencies)))


def once(target: Path, fill: Callable[[Path], None]) -> Path:
    """``target``, which is there in whole or not at all."""
    if target.exists():
        return target
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=DIRECTORY, prefix=f".{target.name}-") as temporary:
        filled = Path(temporary, target.name)
        filled.mkdir()
        fill(filled)
        try:
            filled.rename(target)
        except OSError:
            if not target.exists():  # else another process was first
                raise
    return target


def _unpack(version: str, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as downloads:
        pip("download", "--no-deps", f"--dest={downloads}", *_wheel_options(version))
        [wheel] = Path(downloads).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(target)


def _wheel_options(version: str) -> list[str]:
    tags = [f"manylinux_2_{minor}_{platform.machine()}" for minor in (39, 31)]
    return [
        "--only-binary=:all:",
        "--implementation=cp",
        f"--python-version={ONLY_FOR.get(version, OWN_PYTHON)}",
        *(f"--platform={tag}" for tag in tags),
        f"nvidia-resiliency-ext=={version}",
    ]


def _install_dependencies(target: Path) -> None:
    pip("install", "--only-binary=:all:", f"--target={target}", *DEPENDENCIES)


def pip(*arguments: str) -> None:
    """Run pip of this interpreter; an error if it fails."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stderr}"
