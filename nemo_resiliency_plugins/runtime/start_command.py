"""The command that starts the ranks of a node: ft_launcher, torchrun, or the rank itself."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nemo_resiliency_plugins.compat import nvrx
from nemo_resiliency_plugins.contract import LAUNCH_MODULE, Kind, encode_arguments
from nemo_resiliency_plugins.errors import ResiliencyError
from nemo_resiliency_plugins.runtime.log import level_wanted

PROGRAMS = {Kind.FT: "ft_launcher", Kind.TORCHRUN: "torchrun"}
REMEDY = {
    Kind.FT: f"{nvrx.INSTALL_HINT}, or start the task with torchrun.",
    Kind.TORCHRUN: "Install torch where the ranks run.",
}


class LauncherMissing(ResiliencyError):
    """The program that starts the ranks is not on this node."""

    exit_code = 127


def find_launcher(kind: Kind) -> Path:
    """Where the launcher of this kind is.

    Raises:
        LauncherMissing: it is not on PATH.
    """
    path = shutil.which(PROGRAMS[kind])
    if path is None:
        raise LauncherMissing(f"{PROGRAMS[kind]} is not on this node's PATH. {REMEDY[kind]}")
    return Path(path)


def of_launcher(
    launcher: Path,
    settings: Mapping[str, Any],
    command: list[str],
    *,
    rendezvous: list[str],
    monitor_file: Path | None,
    shield_from: Iterable[str],
    prestart: Iterable[str],
) -> list[str]:
    """The command line of a launcher on this node.

    Args:
        rendezvous: options by which the launchers meet.
        monitor_file: settings of the rank monitors, for ft_launcher.
        shield_from: names of signals that the launcher is not to see.
        prestart: packages that ranks load which are started ahead; without any, none is.
    """
    own = {"--shield": ",".join(shield_from), "--prestart": ",".join(prestart)}
    wrapped = [f"{name}={value}" for name, value in own.items() if value]
    level = level_wanted(os.environ)
    return [
        *([*_python_of(launcher), "-m", f"{__package__}.launcher", *wrapped] if wrapped else []),
        str(launcher),
        *rendezvous,
        f"--nnodes={settings['nnodes']}",
        f"--nproc-per-node={settings['nproc']}",
        *(nvrx.settings_options(monitor_file) if monitor_file else []),
        *(nvrx.log_options(level) if monitor_file and level else []),
        *settings["options"],
        "-m",
        LAUNCH_MODULE,
        *encode_arguments(_script(command)),
    ]


def of_rank(command: list[str]) -> list[str]:
    """The command line of a rank that ``srun`` has started; what is not Python runs as it is."""
    script = _script(command)
    return script[1:] if script[0] == "--exec" else [sys.executable, "-m", LAUNCH_MODULE, *encode_arguments(script)]


def _script(command: list[str]) -> list[str]:
    """What the launch stub runs. An entrypoint such as ``python -X faulthandler`` is several words."""
    words = [*shlex.split(command[0]), *command[1:]]
    has_options = words[1:2] != ["-m"] and "".join(words[1:2]).startswith("-")
    return words[1:] if words[0] in ("python", "python3") and not has_options else ["--exec", *words]


def _python_of(script: Path) -> list[str]:
    """The interpreter that a console script names, which need not be this one."""
    with script.open("rb") as file:
        line = file.readline().decode(errors="replace")
    return shlex.split(line[2:]) if line.startswith("#!") and "python" in line else [sys.executable]
