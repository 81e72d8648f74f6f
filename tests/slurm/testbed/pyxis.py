"""A stand-in for pyxis: an srun that takes container options. The testbed puts it first on PATH.

Like pyxis (0.20) and enroot:
- The task itself enters the container: no process of ours stays in between, so signals and exit codes are as there.
- The image's variables win over the job's, except those that ``--container-env`` names.
- Only what ``--container-mounts`` names (``SRC:DST[:ro]``, by commas) is seen of the host; a source that is not there
  is an error. The tasks of a step on one node share a private /tmp, which starts empty.
- The home directory is not mounted unless ``--container-mount-home`` is given.
- Process ids, network, /dev and /proc are the host's. There are no Slurm commands, configuration or munge inside.

Unlike them:
- An image is a directory in the testbed's ``images`` (or any directory) with a file ``env`` of NAME=value lines. All
  images show the host's /usr and /etc, and the repository and its Python, all read-only.
- Apart from /tmp and the mounts each task has a root of its own in memory; what it writes there is gone afterwards.
- ``--container-name``, ``--container-save`` and the like are refused, and sbatch takes no container options.
- A job without the testbed's PATH, say after ``sbatch --export=NONE``, finds Slurm's own srun, which refuses them.

This file is run by path, with only the standard library: ``pyxis.py ROOT SRUN-ARGUMENT...``.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

SRUN = "/usr/bin/srun"
ENTER = Path(__file__).with_name("container.py")


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# srun 22.05: the options without a separate value.
LONG_FLAGS = words(
    "contiguous disable-status exact exclusive help hold immediate interactive kill-on-bad-exit label multi-prog "
    "no-allocate no-kill overcommit overlap oversubscribe preserve-env propagate pty quiet quit-on-interrupt reboot "
    "spread-job test-only unbuffered usage use-min-nodes verbose version wait-all-nodes whole get-user-env nice "
    "send-libs bcast"
)
SHORT_WITH_VALUE = frozenset("ABCDFGJLMNPRSTUacdegimnopqrtwx")
CONTAINER_VALUES = frozenset({"container-image", "container-mounts", "container-workdir", "container-env"})
CONTAINER_FLAGS = words(
    "container-mount-home no-container-mount-home container-remap-root no-container-remap-root container-writable "
    "container-readonly container-entrypoint no-container-entrypoint"
)


def split(arguments: list[str]) -> tuple[dict[str, str], list[str], list[str]]:
    """Container options, options for srun, and the command."""
    container: dict[str, str] = {}
    options: list[str] = []
    rest = list(arguments)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        argument = rest.pop(0)
        if argument == "--":
            break
        name, given, value = argument[2:].partition("=")
        if not (argument.startswith("--") and is_container(name)):
            options.append(argument)
            if wants_value(argument) and rest:
                options.append(rest.pop(0))
        elif name in CONTAINER_FLAGS:
            container[name] = "yes"
        elif given or rest:
            container[name] = value if given else rest.pop(0)
    return container, options, rest


def is_container(name: str) -> bool:
    if not name.removeprefix("no-").startswith("container-") or name == "container-id":
        return False
    if name not in CONTAINER_VALUES | CONTAINER_FLAGS:
        sys.exit(f"srun: error: the stand-in for pyxis does not know --{name}")
    return True


def wants_value(argument: str) -> bool:
    """Whether srun takes the next argument as the value of this one."""
    if argument.startswith("--"):
        return "=" not in argument and argument[2:] not in LONG_FLAGS
    for place, letter in enumerate(argument[1:], start=2):
        if letter in SHORT_WITH_VALUE:
            return place == len(argument)
    return False


def main(root: str, arguments: list[str]) -> None:
    container, options, command = split(arguments)
    if "container-image" in container:
        command = [sys.executable, "-I", str(ENTER), json.dumps({"root": root, **container}), *command]
    elif container:
        sys.exit(f"srun: error: --{next(iter(container))} without --container-image")
    os.execv(SRUN, ["srun", *options, *command])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
