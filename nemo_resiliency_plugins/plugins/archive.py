"""What NeMo-Run's packagers put into the working directory of a Slurm job, asked before anything is packaged.

The commands are those of the packagers (NeMo-Run 0.11), so that the answers are theirs.
"""

from __future__ import annotations

import io
import os
import posixpath
import subprocess
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import nemo_run as run
from nemo_run.core.packaging.hybrid import HybridPackager

GIT_LINK = "160000"
"""The mode of a submodule in ``git ls-files --stage``."""


def holds(packager: run.Packager, path: str) -> bool | None:
    """Whether the archive has the file or directory ``path`` of the job's working directory; None: nobody can tell."""
    path = posixpath.normpath(path)
    if packager.symlink_from_remote_dir or path.startswith(".."):
        return None
    if type(packager) is run.Packager:
        return False
    if isinstance(packager, run.GitArchivePackager):
        return _in_git(packager, path)
    if isinstance(packager, run.PatternPackager):
        return _is_among(_found(packager.include_pattern, packager.relative_path, Path.cwd()), path)
    return _in_hybrid(packager, path) if isinstance(packager, HybridPackager) else None


def top_level(packager: run.Packager) -> Path | None:
    """The root of the repository that is archived; None without one."""
    start = Path(getattr(packager, "basepath", "") or Path.cwd())
    said = _git(start, "rev-parse", "--show-toplevel") if start.is_dir() else None
    return Path(said.strip()) if said else None


def without_archive(packager: run.Packager) -> str | None:
    """Why ``git archive`` cannot make what the packager ships, in words; None where it can."""
    if isinstance(packager, HybridPackager):
        return next(filter(None, map(without_archive, packager.sub_packagers.values())), None)
    if not isinstance(packager, run.GitArchivePackager) or packager.symlink_from_remote_dir:
        return None
    # NeMo-Run 0.11 asks for the repository of the working directory also where basepath names another one.
    homes = [Path.cwd(), *([Path(packager.basepath)] if packager.basepath else [])]
    for home in homes:
        if _git(home, "rev-parse", "--show-toplevel") is None:
            return f"ships a commit of a git repository, and {home} is in none"
    tree = f"{packager.ref}:{packager.subpath}" if packager.subpath else packager.ref
    if _git(homes[-1], "rev-parse", "--verify", "--quiet", tree) is None:
        return f"ships a commit of a git repository, and that of {homes[-1]} has no {tree}"
    return None


def changed_files(packager: run.GitArchivePackager) -> list[str]:
    """Files below the archived part of the repository that differ from what is archived, untracked ones included."""
    top = top_level(packager)
    if top is None:
        return []
    part = ["--", packager.subpath or "."]
    compared = _git(top, "diff", "--name-only", "-z", packager.ref, *part)
    if compared is None:  # no commit yet
        compared = _git(top, "ls-files", "-z", *part)
    untracked = _git(top, "ls-files", "--others", "--exclude-standard", "-z", *part)
    names = [name for output in (compared, untracked) for name in (output or "").split("\0") if name]
    extra = {(top / name).resolve() for name in names} & {path.resolve() for path in _extra_sources(packager, top)}
    return sorted(name for name in names if (top / name).resolve() not in extra)


def _in_git(packager: run.GitArchivePackager, path: str) -> bool | None:
    top = top_level(packager)
    if top is None:
        return None
    if _is_among(_found(packager.include_pattern, packager.include_pattern_relative_path, top), path):
        return True
    if packager.include_submodules:
        for module in _submodules(top):
            if path.startswith(f"{module}/"):
                return _has(top / module, "HEAD:", path.removeprefix(f"{module}/"))
    return _has(top, f"{packager.ref}:{packager.subpath}", path)


def _in_hybrid(packager: HybridPackager, path: str) -> bool | None:
    answers = []
    for folder, each in packager.sub_packagers.items():
        if packager.extract_at_root:
            answers.append(holds(each, path))
        elif path.startswith(f"{folder}/"):
            answers.append(holds(each, path.removeprefix(f"{folder}/")))
    if True in answers:
        return True
    return None if None in answers else False


def _has(repository: Path, tree: str, path: str) -> bool:
    """Whether ``git archive`` would write the file; unlike ``cat-file`` it heeds ``export-ignore``."""
    command = ["git", "archive", "--format=tar", tree, "--", path]
    done = subprocess.run(command, cwd=repository, capture_output=True, check=False)
    if done.returncode != 0:
        return False
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as written:
        return _is_among(written.getnames(), path)


def _is_among(names: Iterable[str], path: str) -> bool:
    return any(name == path or name.startswith(f"{path}/") for name in names)


def _submodules(top: Path) -> list[str]:
    lines = (_git(top, "ls-files", "--stage", "-z") or "").split("\0")
    return [line.partition("\t")[2] for line in lines if line.startswith(GIT_LINK)]


def _found(patterns: str | list[str], bases: str | list[str], default: Path) -> Iterator[str]:
    """The names that the files of the patterns get in the archive."""
    for name, _ in _matches(patterns, bases, default):
        yield name


def _extra_sources(packager: run.GitArchivePackager, top: Path) -> Iterator[Path]:
    for name, base in _matches(packager.include_pattern, packager.include_pattern_relative_path, top):
        yield base / name


def _matches(patterns: str | list[str], bases: str | list[str], default: Path) -> Iterator[tuple[str, Path]]:
    pairs = zip(_listed(patterns), _listed(bases), strict=False)
    for pattern, base in ((pattern, Path(base or default)) for pattern, base in pairs if pattern):
        # The shell expands the pattern, as it does for the packager.
        command = f"find {os.path.relpath(pattern, base)} -type f"
        done = subprocess.run(["bash", "-c", command], cwd=base, capture_output=True, text=True, check=False)
        for name in done.stdout.splitlines():
            # tar leaves "../" out of the names that it stores.
            yield posixpath.normpath(name).removeprefix("../"), base


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def _git(directory: Path, *arguments: str) -> str | None:
    """The output of git, or None where it fails, or where there is no git or no such directory."""
    command = ["git", *arguments]
    try:
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None
