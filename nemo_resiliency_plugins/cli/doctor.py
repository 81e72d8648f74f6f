"""``nemo-resiliency doctor``: whether this machine, or this job, has what the plugins need."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from packaging.requirements import Requirement
from packaging.version import Version

from nemo_resiliency_plugins.cli.console import console, rows, table
from nemo_resiliency_plugins.cli.versions import RUNTIME, installed
from nemo_resiliency_plugins.compat import nvrx
from nemo_resiliency_plugins.errors import UnsupportedError
from nemo_resiliency_plugins.slurm import site

COMMAND_S = 60.0
DISTRIBUTION = "nemo-resiliency-plugins"
OLDER_MCP = Requirement("mcp<2")
"""Nothing here needs it, and a newer one keeps ft_launcher of NVRx 0.4.1 from starting."""
LAUNCHERS = ("ft_launcher", "torchrun")


@dataclasses.dataclass(frozen=True)
class Finding:
    """``problem`` is empty where all is well; ``remedy`` may then hold a hint."""

    name: str
    value: str
    problem: str = ""
    remedy: str = ""


def doctor(
    partition: Annotated[str | None, typer.Option(help="look at this partition only; in a job, at its own")] = None,
    start: Annotated[bool, typer.Option(help="start ft_launcher, to see that it does")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="for programs")] = False,
) -> None:
    """Versions, launchers and Slurm's settings against what works. Exit code 1: a problem was found.

    Example: nemo-resiliency doctor --partition gpu
    """
    found = [*versions(), *launchers(start=start), *slurm(partition or os.environ.get("SLURM_JOB_PARTITION"))]
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(each) for each in found], indent=1))
    else:
        made = table("", "what", "value", "finding", "remedy")
        for each in found:
            rows(made, "PROBLEM" if each.problem else "ok", each.name, each.value, each.problem, each.remedy)
        console().print(made)
    raise typer.Exit(1 if any(each.problem for each in found) else 0)


def versions() -> Iterator[Finding]:
    """Of the packages: this one, and those whose versions decide whether it works."""
    where = f"job {os.environ['SLURM_JOB_ID']}" if "SLURM_JOB_ID" in os.environ else "no job"
    yield Finding("machine", f"{platform.node()}, {where}")
    low, high = (3, 10), (3, 13)
    bad = not low <= sys.version_info[:2] < high
    yield Finding("python", platform.python_version(), "not tried" if bad else "", "Use 3.10 to 3.12" if bad else "")
    yield Finding(DISTRIBUTION, installed(DISTRIBUTION) or "not installed")
    for requirement, needed in requirements():
        yield _package(requirement, needed=needed)
    yield _nvrx()
    yield _nccl()


def requirements() -> Iterator[tuple[Requirement, bool]]:
    """What this package says that it needs, and whether the submit side needs it; NVRx has a finding of its own."""
    for text in importlib.metadata.requires(DISTRIBUTION) or ():
        requirement = Requirement(text)
        if _applies(requirement, "runtime") and requirement.name != nvrx.DISTRIBUTION:
            yield requirement, _applies(requirement, "")
    yield OLDER_MCP, False


def _applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def launchers(*, start: bool) -> Iterator[Finding]:
    """Whether ranks could be started in this environment."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    for name in LAUNCHERS:
        found = shutil.which(name, path=path)
        if found is None:
            yield Finding(name, "not found", "" if not _runs_ranks() else "ranks cannot be started", RUNTIME)
        elif start and name == "ft_launcher":
            yield _started(name, found)
        else:
            yield Finding(name, found)


def slurm(partition: str | None) -> Iterator[Finding]:
    """What Slurm's commands tell here."""
    if shutil.which("scontrol") is None:
        yield Finding("Slurm", "not here", "", "On a login node or in a job, this looks at the partitions too")
        return
    config, problem = _ask("scontrol", "show", "config")
    if problem:
        yield Finding("Slurm", "no answer", problem, "Ask the site, or try again on a login node")
        return
    fields = site.fields_of_config(config)
    yield from (Finding(*each) for each in site.of_config(fields))
    told, problem = _ask("scontrol", "show", "partition", "--oneliner", *([partition] if partition else []))
    if problem:
        yield Finding("partition", partition or "all", problem, "Name one that `sinfo` shows")
    for each in site.partitions(told):
        yield from (Finding(*finding) for finding in site.of_partition(each, fields))


def _runs_ranks() -> bool:
    """A submit host needs no launcher; a node of a job does, and so does a machine that has torch."""
    return "SLURM_JOB_ID" in os.environ or installed("torch") is not None


def _package(requirement: Requirement, *, needed: bool) -> Finding:
    name, version = requirement.name, installed(requirement.name)
    if version is None:
        return Finding(name, "not installed", "the plugins need it" if needed else "", RUNTIME if needed else "")
    if requirement.specifier.contains(Version(version).base_version):  # vendors number their builds before the release
        return Finding(name, version)
    bounds = ",".join(sorted(map(str, requirement.specifier), reverse=True))
    return Finding(name, version, f"works with {bounds}", f"pip install '{name}{bounds}'")


def _nvrx() -> Finding:
    version = nvrx.installed_version()
    if version is None:
        return Finding(nvrx.DISTRIBUTION, "not installed", "no rank is watched" if _runs_ranks() else "", RUNTIME)
    try:
        nvrx.check_version(version)
    except UnsupportedError as error:
        return Finding(nvrx.DISTRIBUTION, version, error.rule, error.remedy)
    return Finding(nvrx.DISTRIBUTION, version)


def _nccl() -> Finding:
    version = next(filter(None, map(installed, ("nvidia-nccl-cu13", "nvidia-nccl-cu12"))), None)
    return Finding("NCCL", version or "not installed beside torch", "", "" if version else "Needed on GPUs only")


def _started(name: str, path: str) -> Finding:
    """A fresh install may bring a version of something that breaks the launcher: only a start shows that."""
    _, problem = _ask(path, "--help")
    remedy = f"Install the tried versions: {RUNTIME}" if problem else ""
    return Finding(name, path, f"does not start: {problem}" if problem else "", remedy)


def _ask(*command: str) -> tuple[str, str]:
    """What a command says, and the last line of its error where it fails."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COMMAND_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", str(error)
    if done.returncode == 0:
        return done.stdout, ""
    last = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()
    return "", last[-1][:300]
