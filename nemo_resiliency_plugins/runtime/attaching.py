"""What ``attach`` was given, checked and made into the parts that the session uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_resiliency_plugins.config import is_count
from nemo_resiliency_plugins.errors import ConfigError
from nemo_resiliency_plugins.runtime.agreement import Ranks
from nemo_resiliency_plugins.runtime.checkpoint.manager import Checkpointer, DcpCheckpointer, UserCheckpointer
from nemo_resiliency_plugins.runtime.identity import Identity

if TYPE_CHECKING:
    import torch

Functions = tuple["Callable[[int], object] | None", "Callable[[int], object] | None", "Callable[[], int | None] | None"]


def make_ranks(identity: Identity, process_group: Any) -> Ranks:
    """Collective.

    Raises:
        ConfigError: several ranks, and no process group to agree through.
    """
    ranks = Ranks(process_group)
    if ranks.alone and identity.world_size > 1:
        rule = f"needs an initialised process group in a job of {identity.world_size} ranks"
        raise ConfigError("session.attach", "no process group", rule, "Call init_process_group() before it.")
    return ranks


def make_checkpointer(
    ranks: Ranks,
    state: Mapping[str, Any] | None,
    root: Path | None,
    *,
    every: int,
    keep: int,
    functions: Functions,
) -> tuple[Checkpointer, list[torch.nn.Module]]:
    """The checkpointer, and the modules that it knows of."""
    for name, value, least in (("every", every, 0), ("keep", keep, 1)):
        if not is_count(value) or value < least:
            raise ConfigError(f"attach.{name}", value, f"must be a whole number, {least} or more", "Give an int.")
    if state is not None and not isinstance(state, Mapping):
        rule = "must map names to objects"
        raise ConfigError("attach.state", type(state).__name__, rule, 'Give {"model": model, "optimizer": optimizer}.')
    save, load, latest = functions
    if save and load and latest and state is None:
        return UserCheckpointer(ranks, save=save, load=load, latest=latest), []
    if state is None or root is None or any(functions):
        given = {"state": state is not None, "directory": root is not None, "functions": sum(map(bool, functions))}
        rule = "takes state with a directory, or all of save, load and latest without state"
        raise ConfigError("attach", given, rule, "Give one of the two sets.")
    checkpointer = DcpCheckpointer(root, state, ranks, keep=keep)
    return checkpointer, checkpointer.state.models
