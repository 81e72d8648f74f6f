"""Whether the code that a task needs will be there when the job starts: found at submission, not in the job.

What is certain to be missing is refused. What the image, or the cluster, may hold as well is a warning.
"""

from __future__ import annotations

import inspect
import posixpath
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nemo_run as run
from fiddle import daglish

from nemo_resiliency_plugins.errors import UnsupportedError
from nemo_resiliency_plugins.plugins import archive
from nemo_resiliency_plugins.plugins.bundle import PACKAGE
from nemo_resiliency_plugins.plugins.edits import Note, ToldOnce

CODE = "/nemo_run/code"
"""NeMo-Run unpacks the archive there, and starts the task there."""
COMMIT = "Commit it, or use a packager that ships the working tree, such as run.PatternPackager"
NO_ARCHIVE = (
    "Commit there, submit from inside of a repository, or set run.PatternPackager, which ships files, "
    "or run.Packager(), which ships none."
)
MOVE = "Move it to a module of your project."


def check(owner: str, task: run.Script | run.Partial, executor: run.SlurmExecutor, strict: bool) -> Iterator[Note]:
    """Notes on code that may be missing in the job.

    Raises:
        UnsupportedError: code is missing there for certain; or, if ``strict``, it may be.
    """
    refuse_without_archive(executor.packager)
    found = of_script(task, executor) if isinstance(task, run.Script) else of_functions(task, executor)
    for text in (*found, *of_ours(executor)):
        if strict:
            raise UnsupportedError("task", named(task), text, "Leave strict off if the job has it all the same.")
        yield ToldOnce(owner, text, warn=True)
    for text in uncommitted(executor):
        yield ToldOnce(owner, text, warn=True)
    for module in _installed(task):
        yield ToldOnce(owner, f"the job has to have {module} installed, as this machine has")


def refuse_without_archive(packager: run.Packager) -> None:
    """Raises UnsupportedError where NeMo-Run would end with the error of a git command."""
    reason = archive.without_archive(packager)
    if reason is not None:
        raise UnsupportedError("executor.packager", "GitArchivePackager", reason, NO_ARCHIVE)


def named(task: run.Script | run.Partial) -> str:
    """What the user calls the task."""
    if isinstance(task, run.Script):
        return task.path or "an inline script"
    return getattr(task.__fn_or_cls__, "__qualname__", repr(task.__fn_or_cls__))


def of_ours(executor: run.SlurmExecutor) -> Iterator[str]:
    """What is wrong, in words."""
    if archive.holds(executor.packager, f"{PACKAGE}/__init__.py"):
        yield (
            f"the job's code holds a copy of {PACKAGE}, which Python finds before the one that is shipped. "
            "Leave the copy out, or keep it at the version that is installed here"
        )


def uncommitted(executor: run.SlurmExecutor) -> Iterator[str]:
    """What need not concern the task, in words."""
    if isinstance(executor.packager, run.GitArchivePackager) and not executor.packager.symlink_from_remote_dir:
        changed = archive.changed_files(executor.packager)
        if changed:
            names = ", ".join(changed[:3]) + (" and more" if len(changed) > 3 else "")
            yield f"uncommitted and not shipped by GitArchivePackager: {names}. {COMMIT}"


def of_script(task: run.Script, executor: run.SlurmExecutor) -> Iterator[str]:
    """What is wrong with a script, in words.

    Raises:
        UnsupportedError: its relative path is not in the archive, and nothing else is where the job starts.
    """
    if not task.path or "-c" in task.entrypoint.split() or _starts_elsewhere(executor):
        return
    if task.m:
        yield from _of_module(task.path, executor, "module")
        return
    path = task.path.removeprefix(f"{CODE}/")
    if not path.startswith("/"):
        if archive.holds(executor.packager, path) is False:
            yield from _of_unshipped(task.path, path, executor)
    elif Path(path).exists() and not _is_reached(path, executor):
        where = "in the image or a mount" if executor.container_image else "on the cluster"
        yield f"{path} is a file of this machine: unless the same path is {where} too, ship it and give a relative one"


def _of_unshipped(given: str, path: str, executor: run.SlurmExecutor) -> Iterator[str]:
    """Whoever ships nothing may have means of his own to bring the script there."""
    packager = executor.packager
    rule = f"is not among what {_name(packager)} ships, and the job starts in a directory with that alone"
    if type(packager) is not run.Packager:
        raise UnsupportedError("task.path", given, rule, _remedy(packager, path))
    yield f"the script {given} {rule}. {_remedy(packager, path)}"


def _starts_elsewhere(executor: run.SlurmExecutor) -> bool:
    """Whether the user's own options for srun, which come last, name another directory."""
    given = (word for holder in (executor, *executor.resource_group) for word in holder.srun_args or [])
    return any(word.startswith(("--chdir", "-D", "--container-workdir")) for word in given)


def of_functions(task: run.Partial, executor: run.SlurmExecutor) -> Iterator[str]:
    """What is wrong with the functions and classes of a task, in words.

    Raises:
        UnsupportedError: one of them cannot be imported by name.
    """
    for function in _callables(task):
        name, module = getattr(function, "__qualname__", ""), _module(function)
        if "<" in name:
            rule = "has no name by which the job could import it (NeMo-Run ships names, not code)"
            raise UnsupportedError("task", name, rule, f"Make it a function at the top level of a module. {MOVE}")
        if module == "__main__":
            _refuse_launching_file(name, executor)
    for module in _modules(task):
        yield from _of_module(module, executor, "function's module")


def _refuse_launching_file(name: str, executor: run.SlurmExecutor) -> None:
    """NeMo-Run 0.11 ships the launching file beside the job directory, and there the job runs it as a module.

    Raises:
        UnsupportedError: inside a container that file is not seen; there is none; or it would submit once more.
    """
    file = getattr(sys.modules["__main__"], "__file__", None)
    source = Path(file).read_text() if file and Path(file).exists() else ""
    if executor.container_image is not None or not source:
        rule = "is defined in the launching file, which the job cannot import (NeMo-Run ships it by name)"
        raise UnsupportedError("task", name, rule, MOVE)
    if "__main__" not in source:
        rule = "is defined in the launching file, which the job runs as a module: it would submit once more"
        raise UnsupportedError("task", name, rule, 'Submit below `if __name__ == "__main__":` only.')


def _installed(task: run.Script | run.Partial) -> Iterator[str]:
    """Modules of installed packages that the functions of the task come from, Python's own left out."""
    if isinstance(task, run.Partial):
        sources = ((name, _source(name)) for name in _modules(task))
        yield from (name for name, source in sources if source is not None and _is_installed(source))


def _modules(task: run.Partial) -> list[str]:
    return [name for name in dict.fromkeys(map(_module, _callables(task))) if name != "__main__"]


def _module(function: Any) -> str:
    return getattr(function, "__module__", None) or ""


def _callables(task: run.Partial) -> Iterator[Any]:
    """The function of the task, those of the configurations in its arguments, and functions that are arguments."""
    for value, _ in daglish.iterate(task):
        if hasattr(value, "__fn_or_cls__"):
            yield value.__fn_or_cls__
        elif inspect.isfunction(value) or inspect.isclass(value):
            yield value


def _of_module(name: str, executor: run.SlurmExecutor, what: str) -> Iterator[str]:
    source = _source(name)
    if source is None or _is_pythons(source) or _is_installed(source) or _is_shipped(name, executor):
        return
    yield (
        f"the {what} {name} ({source}) is not among what {_name(executor.packager)} ships: "
        f"unless it is installed where the job runs, the import will fail. {_remedy(executor.packager, source.name)}"
    )


def _source(name: str) -> Path | None:
    """The file of a module on this machine, found without importing it."""
    parts = name.split(".")
    loaded = getattr(sys.modules.get(name), "__file__", None)
    if loaded:
        return Path(loaded)
    below = [Path(*parts).with_suffix(".py"), Path(*parts, "__main__.py")]
    return next(
        (path for root in ("", *sys.path) for each in below if (path := Path(root or ".", each)).exists()), None
    )


def _is_shipped(name: str, executor: run.SlurmExecutor) -> bool:
    """Whether the job finds the module in its working directory, or in a part of that on its PYTHONPATH."""
    stem = name.replace(".", "/")
    added = executor.env_vars.get("PYTHONPATH", "").split(":")
    roots = ["", *(path.removeprefix(CODE).lstrip("/") for path in added if path and _is_of_code(path))]
    places = [posixpath.join(root, stem) for root in roots]
    files = [f"{place}{end}" for place in places for end in (".py", "/__init__.py", "/__main__.py")]
    return any(archive.holds(executor.packager, file) is not False for file in files)


def _is_of_code(path: str) -> bool:
    return path.startswith(CODE) or not path.startswith("/")


def _is_pythons(source: Path) -> bool:
    return any(source.is_relative_to(sysconfig.get_path(kind)) for kind in ("stdlib", "platstdlib"))


def _is_installed(source: Path) -> bool:
    """Whether a file belongs to a package that was installed, not to a project of the user's that is on the path."""
    homes = [Path(entry) for entry in sys.path if entry and source.is_relative_to(entry)]
    nearest = max(homes, key=lambda home: len(home.parts), default=None)
    return nearest is not None and any(nearest.glob("*.dist-info"))


def _is_reached(path: str, executor: run.SlurmExecutor) -> bool:
    """Whether the job sees the files of this machine there."""
    if executor.container_image is None:
        return isinstance(executor.tunnel, run.LocalTunnel)
    mounts = [[*mount.split(":"), ""] for mount in executor.container_mounts]
    return any(Path(path).is_relative_to(inside or outside) for outside, inside, *_ in mounts)


def _name(packager: run.Packager) -> str:
    return type(packager).__name__


def _remedy(packager: run.Packager, name: str) -> str:
    if isinstance(packager, run.GitArchivePackager):
        part = f" below {packager.subpath}" if packager.subpath else ""
        return f"Commit {name}{part}, or use a packager that ships the working tree, such as run.PatternPackager."
    if isinstance(packager, run.PatternPackager):
        return f"Let include_pattern match {name}; names in the job are relative to relative_path."
    return f"Use a packager that ships {name}, such as run.PatternPackager, or a path that the job has."
