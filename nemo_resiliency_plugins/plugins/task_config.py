"""Telling a task that is called with Megatron-Bridge's configuration: a ``run.Partial`` with a ``config``."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any

import fiddle as fdl
import nemo_run as run

from nemo_resiliency_plugins.errors import ConflictError, UnsupportedError
from nemo_resiliency_plugins.plugins.edits import Edit, Target


def has_config(task: run.Script | run.Partial) -> bool:
    """Whether the task's function gets an argument ``config``; NeMo-Run (0.11) keeps dataclasses as ``run.Config``."""
    return isinstance(task, run.Partial) and isinstance(task.__arguments__.get("config"), fdl.Buildable)


@dataclasses.dataclass(frozen=True)
class SetTaskConfig(Edit):
    """Set a field in a section of the task's ``config``; a value that the user has chosen must be the same."""

    section: str
    field: str
    value: Any

    def check(self, target: Target) -> None:
        config = target.task.config
        kind, section = kind_of_section(config, self.section), config.__arguments__.get(self.section)
        defaults = {field.name: field.default for field in dataclasses.fields(kind)}
        current = defaults.get(self.field) if section is None else section.__arguments__.get(self.field, self.value)
        if current not in (self.value, defaults.get(self.field)):
            name = f"task.config.{self.section}.{self.field}"
            raise ConflictError(name, current, f"{self.owner} wants {self.value!r}", "Set it in one place only")

    def apply(self, target: Target) -> None:
        config = target.task.config
        if config.__arguments__.get(self.section) is None:
            setattr(config, self.section, run.Config(kind_of_section(config, self.section)))
        setattr(getattr(config, self.section), self.field, self.value)

    def __str__(self) -> str:
        return f"task.config.{self.section}.{self.field} = {self.value!r}"


def kind_of_section(config: fdl.Buildable, section: str) -> type:
    """The class that the configuration's own class declares for a section.

    Raises:
        UnsupportedError: it declares none.
    """
    owner = config.__fn_or_cls__
    hint = typing.get_type_hints(owner).get(section)
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    for kind in typing.get_args(hint) if is_union else (hint,):
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            return kind
    rule, remedy = f"has no section {section!r}", "Leave overrides unset: the session is told without them."
    raise UnsupportedError("task.config", owner.__name__, rule, remedy)
