"""Edits of the executor's launcher."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from nemo_resiliency_plugins.errors import ConflictError
from nemo_resiliency_plugins.plugins.container import name_for_containers
from nemo_resiliency_plugins.plugins.edits import Edit, Target
from nemo_resiliency_plugins.plugins.node_launcher import NodeLauncher, task_key


@dataclasses.dataclass(frozen=True)
class UseLauncher(Edit):
    """Start the task with ``launcher``, which has taken over what the user set on the previous one."""

    launcher: Any

    KEPT: ClassVar[tuple[str, ...]] = ("owners", "tasks")
    """What earlier edits have written into the launcher."""

    def apply(self, target: Target) -> None:
        present = target.executor.launcher
        kept = {name: getattr(present, name) for name in self.KEPT if hasattr(present, name)}
        target.executor.launcher = dataclasses.replace(self.launcher, **kept)

    def __str__(self) -> str:
        changed = {
            field.name: getattr(self.launcher, field.name)
            for field in dataclasses.fields(self.launcher)
            if field.default is not dataclasses.MISSING and getattr(self.launcher, field.name) != field.default
        }
        fields = ", ".join(f"{name}={value}" for name, value in changed.items())
        return f"launcher = {type(self.launcher).__name__} ({fields})"


@dataclasses.dataclass(frozen=True)
class UseNodeLauncher(Edit):
    """Start the task with ``launcher``, unless another plugin has brought one already."""

    launcher: NodeLauncher

    def apply(self, target: Target) -> None:
        if not isinstance(target.executor.launcher, NodeLauncher):
            target.executor.launcher = dataclasses.replace(self.launcher, owners={}, tasks={})

    def __str__(self) -> str:
        return f"launcher = NodeLauncher (kind={self.launcher.kind})"


@dataclasses.dataclass(frozen=True)
class PassIntoContainer(Edit):
    """A variable of the batch script's own that the ranks read."""

    name: str

    def apply(self, target: Target) -> None:
        name_for_containers(target.executor, self.name)

    def __str__(self) -> str:
        return f"{self.name} reaches a container whose image sets it too"


@dataclasses.dataclass(frozen=True)
class Claim(Edit):
    """Set a field of the node launcher, or with ``a.b`` an entry of one of its mappings, and own it."""

    name: str
    value: Any
    takes_over: bool = False
    """Replace a value that nobody owns: what the launcher was before the plugins came."""

    def check(self, target: Target) -> None:
        launcher = target.executor.launcher
        if not isinstance(launcher, NodeLauncher):
            return
        current, holder = launcher.claimed(self.name), target.owners.get(f"launcher.{self.name}")
        is_open = holder is None and (self.takes_over or current == launcher.default(self.name))
        if is_open or current == self.value:
            return
        rule = f"{self.owner} wants this value, {holder or 'the launcher'} has set {current!r}"
        raise ConflictError(f"launcher.{self.name}", self.value, rule, "Set it in one place, or alike in both")

    def apply(self, target: Target) -> None:
        launcher: NodeLauncher = target.executor.launcher
        if target.owners.get(f"launcher.{self.name}") is None:
            launcher.claim(self.name, self.value)
            target.owners[f"launcher.{self.name}"] = self.owner

    def __str__(self) -> str:
        return f"launcher.{self.name} = {self.value!r}"


@dataclasses.dataclass(frozen=True)
class RegisterTask(Edit):
    """Tell the launcher of a task group about one of its tasks; the order is that of the group."""

    def apply(self, target: Target) -> None:
        tasks: dict[str, str] = target.executor.launcher.tasks
        tasks[str(id(target.task))] = task_key(target.task)  # with the arguments that plugins have added so far

    def __str__(self) -> str:
        return "the task is one of a group"
