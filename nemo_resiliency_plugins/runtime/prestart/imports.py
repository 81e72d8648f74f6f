"""What a rank has loaded, and a process that may replace it loads ahead."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from nemo_resiliency_plugins.contract import write_atomically
from nemo_resiliency_plugins.runtime.leaving_word import told_if_not_left

ENV_ROOM = "NRP_PRESTART_ROOM"
"""A directory of this node, where the launcher reads what its ranks tell."""
ENV_IMPORTS = "NRP_PRESTART_IMPORTS"
"""Packages that may be loaded ahead, with commas."""


def told_path(room: Path, local_rank: str) -> Path:
    return room / f"{local_rank}.json"


def tell() -> None:
    """After the first step: the modules of the allowed packages, in the order in which they were loaded."""
    room = os.environ.get(ENV_ROOM)
    if room is None:
        return
    packages = os.environ[ENV_IMPORTS].split(",")
    modules = list(sys.modules.items())
    names = [name for name, module in modules if getattr(module, "__spec__", None) and _is_of(name, packages)]
    with told_if_not_left("what a restart may load ahead"):
        write_atomically(told_path(Path(room), os.environ["LOCAL_RANK"]), json.dumps(names))


def load(env: Mapping[str, str]) -> None:
    """What cannot be loaded is left to the script."""
    for name in json.loads(told_path(Path(env[ENV_ROOM]), env["LOCAL_RANK"]).read_text()):
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def _is_of(name: str, packages: Sequence[str]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)
