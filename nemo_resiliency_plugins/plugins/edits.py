"""What a plugin changes, as values: planned first, checked together, then applied together.

Every field that an edit changes gets one owner, kept in the executor's launcher, because nothing else survives
``executor.clone()`` (NeMo-Run 0.11). A second claimant with another value is refused.
"""

from __future__ import annotations

import dataclasses
import logging
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import nemo_run as run
from nemo_run.core.execution.base import Executor

from nemo_resiliency_plugins.contract import LAUNCH_MODULE, decode_arguments, encode_arguments
from nemo_resiliency_plugins.errors import ConflictError
from nemo_resiliency_plugins.plugins.container import name_for_containers

log = logging.getLogger(__name__)


@dataclasses.dataclass
class Target:
    """The task and the executor that ``setup`` was handed."""

    task: run.Partial | run.Script
    executor: Executor

    @property
    def owners(self) -> dict[str, str]:
        owners: dict[str, str] = getattr(self.executor.launcher, "owners", {})
        return owners


@dataclasses.dataclass(frozen=True)
class Edit:
    """One change. ``check`` raises a ConflictError, and ``apply`` is called only after every check has passed."""

    owner: str

    def check(self, target: Target) -> None:
        """Refuse what would overwrite somebody's value."""

    def apply(self, target: Target) -> None:
        """Make the change; a second time it changes nothing."""


@dataclasses.dataclass(frozen=True)
class SetEnv(Edit):
    """Set a variable of the job. Where the user has set it, the user's value wins over a default.

    ``firm``: the value was chosen on purpose, so a different one of the user's is a conflict.
    """

    name: str
    value: str
    firm: bool = False

    def check(self, target: Target) -> None:
        current = self._current(target)
        holder = target.owners.get(self._key)
        if current is None or current == self.value or (holder is None and not self.firm):
            return
        raise ConflictError(
            f"env_vars[{self.name!r}]",
            self.value,
            f"{self.owner} wants this value, {holder or 'the executor or task'} has set {current!r}",
            "Give both the same value, or only one of them",
        )

    def apply(self, target: Target) -> None:
        current = self._current(target)
        if current is None:
            target.executor.env_vars[self.name] = self.value
            target.owners[self._key] = self.owner
        if current in (None, self.value):
            name_for_containers(target.executor, self.name)
        else:
            log.info("%s: %s stays %r, as set by the user", self.owner, self.name, current)

    def __str__(self) -> str:
        return f"{self.name}={shlex.quote(self.value)}"

    @property
    def _key(self) -> str:
        return f"env:{self.name}"

    def _current(self, target: Target) -> str | None:
        """The value that the job would see: a task's own variables win over the executor's."""
        of_task: dict[str, str] = (target.task.env or {}) if isinstance(target.task, run.Script) else {}
        value: str | None = of_task.get(self.name, target.executor.env_vars.get(self.name))
        return value


@dataclasses.dataclass(frozen=True)
class SetField(Edit):
    """Set a field of the executor whose former value the plugin has taken over."""

    name: str
    value: Any

    def apply(self, target: Target) -> None:
        setattr(target.executor, self.name, self.value)
        target.owners[f"executor.{self.name}"] = self.owner

    def __str__(self) -> str:
        return f"executor.{self.name} = {self.value!r}"


@dataclasses.dataclass(frozen=True)
class AddSetupLines(Edit):
    """Append lines to the batch script's set-up, after the user's own."""

    lines: str

    def check(self, target: Target) -> None:
        holder = target.owners.get("setup_lines")
        if holder is not None and self.lines not in (target.executor.setup_lines or ""):
            rule = f"{holder} has added lines already, and {self.owner} wants others"
            raise ConflictError("executor.setup_lines", "...", rule, "Use one plugin of a kind, with one set of values")

    def apply(self, target: Target) -> None:
        present = target.executor.setup_lines or ""
        if self.lines not in present:
            target.executor.setup_lines = f"{present}\n{self.lines}" if present else self.lines
            target.owners["setup_lines"] = self.owner

    def __str__(self) -> str:
        return "executor.setup_lines +=\n" + "\n".join(f"    {line}" for line in self.lines.splitlines())


@dataclasses.dataclass(frozen=True)
class AddSrunArguments(Edit):
    """Append options to the ``srun`` that starts the task; of two that say different things, srun takes the last."""

    arguments: tuple[str, ...]
    group_index: int

    def apply(self, target: Target) -> None:
        executor = target.executor
        # NeMo-Run 0.11 copies a group's options to its resource requests before plugins run.
        of_task = executor.resource_group[self.group_index : self.group_index + 1]
        for holder in (executor, *of_task):
            present = list(holder.srun_args or [])
            if not _contains(present, self.arguments):
                holder.srun_args = [*present, *self.arguments]

    def __str__(self) -> str:
        return f"srun {shlex.join(self.arguments)}"


@dataclasses.dataclass(frozen=True)
class WriteFile(Edit):
    """Write a small file on this machine; its name holds a hash of its content, so it is never rewritten."""

    path: Path
    content: str

    def apply(self, target: Target) -> None:
        if not self.path.exists():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(self.content)

    def __str__(self) -> str:
        return f"file {self.path}:\n" + "\n".join(f"    {line}" for line in self.content.splitlines())


@dataclasses.dataclass(frozen=True)
class AddArguments(Edit):
    """Append arguments to the script; ``a.b=c`` arguments that the user gave already stay the user's."""

    arguments: tuple[str, ...]

    def check(self, target: Target) -> None:
        given = _by_key(script_arguments(target.task))
        for key, value in _by_key(self.arguments).items():
            if not _same(given.get(key, value), value):
                rule = f"{self.owner} adds {key}={value}, the script's arguments have {key}={given[key]}"
                raise ConflictError("task.args", f"{key}={given[key]}", rule, "Remove one of them")

    def apply(self, target: Target) -> None:
        present = script_arguments(target.task)
        if not _contains(present, self.arguments):
            keys = _by_key(present).keys()
            target.task.args.extend(argument for argument in self.arguments if not _by_key([argument]).keys() & keys)

    def __str__(self) -> str:
        return f"script arguments += {shlex.join(self.arguments)}"


@dataclasses.dataclass(frozen=True)
class RunThroughStub(Edit):
    """Start the script through the runtime's launch stub, with its arguments byte for byte."""

    PYTHON: ClassVar[str] = "python"

    def apply(self, target: Target) -> None:
        task = target.task
        if task.path == LAUNCH_MODULE:
            return
        script = (["-m", task.path] if task.m else [task.path]) + [str(argument) for argument in task.args]
        if task.entrypoint != self.PYTHON:
            # NeMo-Run 0.11 drops any other entrypoint when it starts a script through a launcher.
            script = ["--exec", *shlex.split(task.entrypoint), *script]
        task.path, task.m, task.entrypoint = LAUNCH_MODULE, True, self.PYTHON
        task.args = encode_arguments(script)

    def __str__(self) -> str:
        return f"script is started through python -m {LAUNCH_MODULE}"


@dataclasses.dataclass(frozen=True)
class Note(Edit):
    """Something that the user should know; ``warn`` says it aloud when applied."""

    text: str
    warn: bool = False

    def apply(self, target: Target) -> None:
        log.log(logging.WARNING if self.warn else logging.DEBUG, "%s: %s", self.owner, self.text)

    def __str__(self) -> str:
        return f"note: {self.text}"


@dataclasses.dataclass(frozen=True)
class ToldOnce(Note):
    """However many plugins find it."""

    def apply(self, target: Target) -> None:
        key = f"told:{self.text}"
        if key not in target.owners:
            target.owners[key] = "told"
            super().apply(target)


def apply(edits: Iterable[Edit], task: run.Partial | run.Script, executor: Executor) -> None:
    """Apply all edits or, if one is refused, none.

    Raises:
        ConflictError: an edit would overwrite a value that somebody else set.
    """
    target = Target(task, executor)
    edits = list(edits)
    for edit in edits:
        edit.check(target)
    for edit in edits:
        edit.apply(target)


def script_arguments(task: run.Partial | run.Script) -> list[str]:
    """The arguments of a script, also when it is started through the stub already; other tasks have none."""
    if not isinstance(task, run.Script):
        return []
    return decode_arguments(task.args) if task.path == LAUNCH_MODULE else [str(each) for each in task.args]


def _by_key(arguments: Iterable[str]) -> dict[str, str]:
    """The ``key=value`` arguments, by key."""
    return dict(argument.split("=", 1) for argument in arguments if "=" in argument and not argument.startswith("-"))


def _same(one: str, other: str) -> bool:
    """OmegaConf takes True for true."""
    return one == other or (one.lower() == other.lower() and one.lower() in ("true", "false"))


def _contains(arguments: list[str], part: tuple[str, ...]) -> bool:
    return any(tuple(arguments[start : start + len(part)]) == part for start in range(len(arguments) - len(part) + 1))
