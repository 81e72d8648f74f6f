"""What plugins share that tell the job's session one config, and leave alone how its ranks are started."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import nemo_run as run
from nemo_run.core.execution.base import Executor

from nemo_resiliency_plugins.config.rules import A_COUNT, A_SWITCH, Rule, changed_fields, field_names, one_of, validate
from nemo_resiliency_plugins.errors import ConfigError, UnsupportedError
from nemo_resiliency_plugins.plugins import on_slurm
from nemo_resiliency_plugins.plugins.base import ResiliencyPlugin
from nemo_resiliency_plugins.plugins.edits import Edit, script_arguments
from nemo_resiliency_plugins.plugins.given_arguments import given_fields
from nemo_resiliency_plugins.plugins.script_args import MEGATRON_BRIDGE, ScriptArgs, require_module_level, script_edits
from nemo_resiliency_plugins.plugins.telling import by_variables, without_effect, without_the_other

MAX_NODE_EXCLUSIONS = 3
EXCLUSIONS = {"max_node_exclusions": "policy.max_exclusions"}
"""For plugins that let a job leave nodes."""
RULES: dict[str, Rule] = {
    "overrides": one_of(None, MEGATRON_BRIDGE),
    "max_node_exclusions": A_COUNT,
    "trains": A_COUNT,
    "strict": A_SWITCH,
}


@dataclasses.dataclass(kw_only=True)
class SessionPlugin(ResiliencyPlugin):
    """The fields of the config are fields of the plugin, with the same rules.

    Attributes:
        overrides: ``"megatron_bridge"`` adds hydra-style overrides to the script's arguments.
        script_args_converter_fn: makes script arguments from what the plugin's ``ScriptArgs`` class holds.
        trains: which task of a task group trains; the others start without the node script (Slurm).
        strict: what cannot work is an error instead of a warning, here and in the job.

    Raises:
        ConfigError: at construction, for a value that breaks its rule.
    """

    overrides: str | None = None
    script_args_converter_fn: Callable[[Any], list[str]] | None = None
    trains: int = 0
    strict: bool = False

    CONFIG: ClassVar[type]
    SCRIPT_ARGS: ClassVar[type[ScriptArgs]]
    ALWAYS_TOLD: ClassVar[tuple[str, ...]] = ()
    """Fields that the job gets at their default too; the others stay open for the script's own config then."""
    POLICY_FIELDS: ClassVar[Mapping[str, str]] = {}
    """Fields that are entries of the retry policy."""
    NEEDS: ClassVar[Mapping[str, tuple[str, Any]]] = {}
    """By field that does nothing alone: which other field must have which value."""

    @property
    def name(self) -> str:
        return type(self).__name__

    def __post_init__(self) -> None:
        validate(self.name, self, {field: rule for field, rule in RULES.items() if hasattr(self, field)})
        require_module_level(f"{self.name}.script_args_converter_fn", self.script_args_converter_fn)
        try:
            self.job_config()
        except ConfigError as error:
            field = f"{self.name}.{error.field.rpartition('.')[2]}"
            raise ConfigError(field, error.value, error.rule, error.remedy) from None

    def job_config(self) -> Any:
        """What the session in the job is told."""
        return self.CONFIG(**{field: getattr(self, field) for field in field_names(self.CONFIG)})

    def told_to_the_job(self) -> dict[str, Any]:
        """The fields of :meth:`job_config` that the job gets."""
        return {**{field: getattr(self, field) for field in self.ALWAYS_TOLD}, **changed_fields(self.job_config())}

    def notes(self, task: run.Partial | run.Script, executor: Executor) -> Iterator[Edit]:
        """What the user is to know of this task and executor. Raises ConflictError for what cannot go together."""
        yield from ()

    def plan(self, task: run.Partial | run.Script, executor: Executor) -> tuple[Edit, ...]:
        notes = (*without_the_other(self.name, self, self.NEEDS), *self.notes(task, executor))
        arguments = tuple(self._script_edits(task)) if on_slurm.is_training(task, executor, self.trains) else ()
        if isinstance(executor, run.SlurmExecutor):
            options: dict[str, Any] = {"claims": self._claims(), "trains": self.trains, "strict": self.strict}
            return (*notes, *arguments, *on_slurm.plan(self.name, task, executor, **options))
        if isinstance(executor, run.LocalExecutor):
            return (*notes, *arguments, *self._on_local())
        rule = "is not supported; run.SlurmExecutor and run.LocalExecutor are"
        remedy = f"On other systems give session() a {self.CONFIG.__name__} in the script."
        raise UnsupportedError("executor", type(executor).__name__, rule, remedy)

    def _claims(self) -> dict[str, Any]:
        """Fields and entries of the node launcher."""
        changed = changed_fields(self)
        policy = {entry: changed[field] for field, entry in self.POLICY_FIELDS.items() if field in changed}
        return {f"config.{self.CONFIG.PLUGIN}": self.told_to_the_job(), **policy}  # type: ignore[attr-defined]

    def _on_local(self) -> Iterator[Edit]:
        section: str = self.CONFIG.PLUGIN  # type: ignore[attr-defined]
        yield from by_variables(self.name, section, self.told_to_the_job(), strict=self.strict)
        yield from without_effect(self.name, self, [*self.POLICY_FIELDS, "trains"])

    def _script_edits(self, task: run.Partial | run.Script) -> Iterator[Edit]:
        fields = {field: getattr(self, field) for field in field_names(self.SCRIPT_ARGS)}
        given = given_fields(self.name, self.SCRIPT_ARGS.SECTION, script_arguments(task), fields)
        args, converter = self.SCRIPT_ARGS(**fields), self.script_args_converter_fn
        return script_edits(self.name, task, args, overrides=self.overrides, converter=converter, leave_out=given)
