"""What ``attach`` was given, checked and made into the parts that the session uses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from nemo_resiliency_plugins.config import CheckpointConfig
from nemo_resiliency_plugins.config.rules import is_count
from nemo_resiliency_plugins.errors import ConfigError
from nemo_resiliency_plugins.runtime.agreement import Ranks
from nemo_resiliency_plugins.runtime.checkpoint.manager import Checkpointer, DcpCheckpointer, UserCheckpointer
from nemo_resiliency_plugins.runtime.checkpoint.reporting import Reporter
from nemo_resiliency_plugins.runtime.identity import Identity
from nemo_resiliency_plugins.runtime.in_process import life
from nemo_resiliency_plugins.runtime.rerun.feature import NoResults

Attached = TypeVar("Attached")
Functions = tuple["Callable[[int], object] | None", "Callable[[int], object] | None", "Callable[[], int | None] | None"]


def make_ranks(identity: Identity, process_group: Any) -> Ranks:
    """Collective.

    Raises:
        ConfigError: several ranks, and no process group to agree through; or one that in-process restart cannot use.
    """
    ranks = Ranks(process_group)
    if ranks.alone and identity.world_size > 1:
        rule = f"needs an initialised process group in a job of {identity.world_size} ranks"
        raise ConfigError("session.attach", "no process group", rule, "Call init_process_group() before it.")
    life.check_group_timeouts()
    return ranks


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What ``attach`` was given: a state with a directory, or functions for a format of the user's own.

    Beside functions, the state is watched and not saved.
    """

    state: Mapping[str, Any] | None
    root: Path | None
    every: int
    keep: int
    functions: Functions

    def __post_init__(self) -> None:
        for name, value, least in (("every", self.every, 0), ("keep", self.keep, 1)):
            if not is_count(value) or value < least:
                raise ConfigError(f"attach.{name}", value, f"must be a whole number, {least} or more", "Give an int.")
        if self.state is not None and not isinstance(self.state, Mapping):
            remedy = 'Give {"model": model, "optimizer": optimizer}.'
            raise ConfigError("attach.state", type(self.state).__name__, "must map names to objects", remedy)

    def of_type(self, kind: type[Attached]) -> list[Attached]:
        """The objects of ``kind`` in the state."""
        return [value for value in (self.state or {}).values() if isinstance(value, kind)]


def make_checkpointer(
    ranks: Ranks,
    wanted: Wanted,
    config: CheckpointConfig,
    reporter: Reporter,
    node: str,
    results: NoResults | None = None,
) -> Checkpointer:
    """Collective."""
    state, root, functions = wanted.state, wanted.root, wanted.functions
    save, load, latest = functions
    if save and load and latest:
        for name in ("async_save", "non_persistent_local_ckpt_dir"):
            if value := getattr(config, name):
                rule = "cannot be used with save=, load= and latest=: the session knows nothing of that format"
                raise ConfigError(f"CheckpointConfig.{name}", value, rule, "Attach state=, or leave it out.")
        return UserCheckpointer(ranks, reporter, save=save, load=load, latest=latest)
    if state is None or root is None or any(functions):
        given = {"state": state is not None, "directory": root is not None, "functions": sum(map(bool, functions))}
        rule = "takes state with a directory, or all of save, load and latest"
        raise ConfigError("attach", given, rule, "Give one of the two sets.")
    if config.ckpt_format != "torch_dist":
        rule = "is not written by the session"
        raise ConfigError("CheckpointConfig.ckpt_format", config.ckpt_format, rule, "Give save=, load= and latest=.")
    return DcpCheckpointer(root, state, ranks, reporter, keep=wanted.keep, config=config, node=node, results=results)
