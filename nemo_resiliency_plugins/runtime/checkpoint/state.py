"""Between a user's objects and one flat state dict: tensors by name, everything else of a rank in one entry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from nemo_resiliency_plugins.errors import ConfigError
from nemo_resiliency_plugins.runtime import rng

FLAT = StateDictOptions(flatten_optimizer_state_dict=True)
RNG = "rng"


class TrainingState:
    """The objects to save and restore, by name.

    Modules and optimizers are saved under their parameters' names, sharded ones as shards, so that another
    world size can load them. Of any other object (a scheduler, a scaler, a data loader) the ``state_dict()``
    of each rank is kept, and with it the random number generators.

    Raises:
        ConfigError: an object without ``state_dict`` and ``load_state_dict``, or an optimizer without its model.
    """

    def __init__(self, objects: Mapping[str, Any]) -> None:
        for name, value in objects.items():
            _check(name, value)
        self._objects = dict(objects)
        self.models = [value for value in objects.values() if isinstance(value, torch.nn.Module)]
        self._model_of = {
            name: _owner(name, value, self.models)
            for name, value in objects.items()
            if isinstance(value, torch.optim.Optimizer)
        }

    def gather(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Tensors by flat name, and what else this rank has, by object."""
        tensors: dict[str, torch.Tensor] = {}
        host: dict[str, Any] = {}
        for name, value in self._objects.items():
            state = self._state_of(name, value)
            if name in self._model_of or isinstance(value, torch.nn.Module):
                tensors.update({f"{name}.{key}": entry for key, entry in state.items() if torch.is_tensor(entry)})
                state = {key: entry for key, entry in state.items() if not torch.is_tensor(entry)}
            host[name] = state
        return tensors, {**host, RNG: rng.capture()}

    def scatter(self, tensors: Mapping[str, torch.Tensor], host: Mapping[str, Any]) -> None:
        """Give the objects what :meth:`gather` took, with the tensors filled by a load."""
        for name, value in self._objects.items():
            prefix = f"{name}."
            mine: dict[str, Any] = {
                key[len(prefix) :]: entry for key, entry in tensors.items() if key.startswith(prefix)
            }
            if name in self._model_of:
                set_optimizer_state_dict(self._model_of[name], value, {**mine, **host[name]}, options=FLAT)
            elif isinstance(value, torch.nn.Module):
                set_model_state_dict(value, {**mine, **host[name]})
            else:
                value.load_state_dict(host[name])
        rng.restore(host[RNG])

    def _state_of(self, name: str, value: Any) -> Any:
        if name in self._model_of:
            return get_optimizer_state_dict(self._model_of[name], value, options=FLAT)
        if isinstance(value, torch.nn.Module):
            return get_model_state_dict(value)
        return value.state_dict()


def _check(name: str, value: Any) -> None:
    if not name or "." in name or name == RNG:
        raise ConfigError("attach.state", name, f"names are not empty, not {RNG!r} and without dots", "Rename it.")
    if not (callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))):
        kind = type(value).__name__
        raise ConfigError(f"attach.state[{name!r}]", kind, "needs state_dict() and load_state_dict()", "Wrap it.")


def _owner(name: str, optimizer: torch.optim.Optimizer, models: Iterable[torch.nn.Module]) -> torch.nn.Module:
    wanted = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for model in models:
        if wanted <= {id(parameter) for parameter in model.parameters()}:
            return model
    raise ConfigError(f"attach.state[{name!r}]", "optimizer", "its model must be in state too", "Add the model.")
