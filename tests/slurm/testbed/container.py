"""The task's side of the stand-in for pyxis: builds the container around the own process, then becomes the task.

bubblewrap is not used: it stays in between as the parent of the task, and dies of a SIGTERM that is meant for the task.
This file is run by path, with only the standard library: ``container.py OPTIONS-AS-JSON COMMAND...``.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 0x1, 0x20, 0x1000, 0x4000, 0x40000
CLONE_NEWNS = 0x20000
REPOSITORY = Path(__file__).resolve().parents[3]
LIBC = ctypes.CDLL(None, use_errno=True)


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


SLURM_COMMANDS = words(
    "sacct sacctmgr salloc sattach sbatch sbcast scancel scontrol scrontab sdiag sgather sh5util sinfo sprio squeue "
    "sreport srun sshare sstat strigger sview munge unmunge remunge"
)


class Root:
    """The file system that the task will see, under construction on a tmpfs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        _checked("unshare", LIBC.unshare(CLONE_NEWNS))
        # Else every mount below would be seen on the host.
        _mount("none", Path("/"), flags=MS_REC | MS_PRIVATE)
        path.mkdir(parents=True, exist_ok=True)
        _mount("tmpfs", path, kind="tmpfs")

    def show(self, source: Path, target: Path | None = None, *, writable: bool = False) -> None:
        """Mount a file or directory of the host, at the same place unless told otherwise."""
        place = self._place(target or source)
        if source.is_dir():
            place.mkdir(parents=True, exist_ok=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
        _mount(str(source), place, flags=MS_BIND | MS_REC)
        if not writable:
            _mount("none", place, flags=MS_BIND | MS_REMOUNT | MS_RDONLY)

    def link(self, path: Path, target: str) -> None:
        place = self._place(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target)

    def directory(self, path: Path) -> None:
        self._place(path).mkdir(parents=True, exist_ok=True)

    def _place(self, path: Path) -> Path:
        return self.path / path.relative_to("/")


def show_system(root: Root) -> None:
    """/usr and /etc of the host, but with a /usr/bin that lacks Slurm's commands."""
    for path in sorted(Path("/usr").iterdir()):
        if path.name == "bin":
            # Next to its old place, so that a Python resolved from a link still finds its library.
            root.show(path, Path("/usr/.bin"))
        else:
            root.show(path)
    for path in Path("/usr/bin").iterdir():
        if path.name not in SLURM_COMMANDS:
            root.link(path, f"/usr/.bin/{path.name}")
    # Links into /usr.
    for path in (path for path in Path("/").iterdir() if path.is_symlink()):
        root.link(path, str(path.readlink()))
    root.show(Path("/etc"))
    for name in ("dev", "proc", "sys"):
        root.show(Path("/", name), writable=True)
    for name in ("root", "run", "var/tmp"):
        root.directory(Path("/", name))


def python_paths() -> Iterator[Path]:
    """The repository and the Python that runs the tests, as far as they are not below /usr."""
    for path in dict.fromkeys((REPOSITORY, Path(sys.prefix), Path(sys.base_prefix))):
        if path.is_relative_to("/usr") or (path != REPOSITORY and path.is_relative_to(REPOSITORY)):
            continue
        yield path


def parse_mounts(text: str) -> Iterator[tuple[Path, Path, bool]]:
    for entry in filter(None, text.split(",")):
        source, _, rest = entry.partition(":")
        target, _, flags = rest.partition(":")
        if not Path(source).exists():
            sys.exit(f"container: error: {source} of --container-mounts does not exist")
        yield Path(source), Path(target or source), "ro" not in flags.split("+")


def image_env(root: Path, image: str) -> dict[str, str]:
    file = root / "images" / image / "env"
    if not file.exists():
        sys.exit(f"container: error: no image {image}: there is no {file}")
    return dict(line.split("=", 1) for line in file.read_text().splitlines() if line)


def merged(job: Mapping[str, str], image: Mapping[str, str], named: str) -> dict[str, str]:
    kept = {name: job[name] for name in named.split(",") if name in job}
    return {**job, **image, **kept}


def state_directory(root: Path) -> Path:
    """One for the tasks of a step on one node. Step ids start over when a job is requeued."""
    names = ("SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_STEP_ID", "SLURMD_NODENAME")
    return root / "containers" / "-".join(os.environ.get(name, "0") for name in names)


def main(options: dict[str, str], command: list[str]) -> None:
    testbed = Path(options["root"])
    env = merged(os.environ, image_env(testbed, options["container-image"]), options.get("container-env", ""))
    mounts = list(parse_mounts(options.get("container-mounts", "")))
    state = state_directory(testbed)
    tmp = state / "tmp"
    tmp.mkdir(parents=True, exist_ok=True)
    tmp.chmod(0o1777)
    root = Root(state / "root")
    show_system(root)
    root.show(tmp, Path("/tmp"), writable=True)
    if "container-mount-home" in options:
        root.show(Path.home(), writable=True)
    for path in python_paths():
        root.show(path)
    for source, target, writable in mounts:
        root.show(source, target, writable=writable)
    os.chroot(root.path)
    os.chdir(options.get("container-workdir", "/"))
    try:
        os.execvpe(command[0], command, env)
    except OSError as error:
        print(f"container: error: execve(): {command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(2)


def _mount(source: str, target: Path, *, kind: str | None = None, flags: int = 0) -> None:
    encoded = kind.encode() if kind else None
    _checked(f"mount {source} at {target}", LIBC.mount(source.encode(), os.fsencode(target), encoded, flags, None))


def _checked(what: str, result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2:])
