"""What a rank has loaded, and a process that may replace it loads ahead."""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nemo_resiliency_plugins.contract import write_atomically
from nemo_resiliency_plugins.runtime.leaving_word import told_if_not_left

ENV_ROOM = "NRP_PRESTART_ROOM"
"""A directory of this node, where the launcher reads what its ranks tell."""
ENV_IMPORTS = "NRP_PRESTART_IMPORTS"
"""Packages that may be loaded ahead, with commas."""

Surroundings = dict[str, Any]
_surroundings: dict[str, Surroundings] = {}
"""What the script had changed when each of the packages was loaded: torch, say, reads OMP_NUM_THREADS once."""


class Surveyor(importlib.abc.MetaPathFinder):
    """Keeps what a script changes before it loads one of the packages."""

    def __init__(self, packages: Sequence[str]) -> None:
        self._packages = packages
        self._before = dict(os.environ)

    def find_spec(self, name: str, *_: Any) -> None:
        if name in self._packages:
            env = dict(os.environ)
            changed = {each: env.get(each) for each, _ in self._before.items() ^ env.items()}
            _surroundings[name] = {"variables": changed, "path": sys.path.copy()}


def survey() -> None:
    """Before the script of a rank runs."""
    if ENV_ROOM in os.environ:
        sys.meta_path.insert(0, Surveyor(os.environ[ENV_IMPORTS].split(",")))


def told_path(room: Path, local_rank: str) -> Path:
    return room / f"{local_rank}.json"


def tell() -> None:
    """After the first step: the modules of the allowed packages, in the order in which they were loaded."""
    room = os.environ.get(ENV_ROOM)
    if room is None:
        return
    packages = os.environ[ENV_IMPORTS].split(",")
    modules = list(sys.modules.items())
    names = [name for name, module in modules if _is_of(name, packages) and getattr(module, "__spec__", None)]
    with told_if_not_left("what a restart may load ahead", "no rank is started ahead"):
        told = json.dumps({"modules": names, "surroundings": _surroundings})
        write_atomically(told_path(Path(room), os.environ["LOCAL_RANK"]), told)


def load(env: Mapping[str, str], is_wanted: Callable[[], bool] = lambda: True) -> None:
    """What cannot be loaded is left to the script, and so are its variables and paths."""
    told = json.loads(told_path(Path(env[ENV_ROOM]), env["LOCAL_RANK"]).read_text())
    _surroundings.update(told["surroundings"])
    path = sys.path.copy()
    for name in told["modules"]:
        if not is_wanted():
            break
        _resemble_for(name)
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    sys.path[:] = path


def _resemble_for(module: str) -> None:
    """A package stands behind those of its modules that it loads itself."""
    for package, surroundings in _surroundings.items():
        if package not in sys.modules and _is_of(module, [package]):
            sys.path[:] = surroundings["path"]
            _change(surroundings["variables"])


def _change(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _is_of(name: str, packages: Sequence[str]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)
