"""Between a user's objects and one flat state dict: tensors by name, everything else of a rank in one entry."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor

from nemo_resiliency_plugins.errors import CheckpointError, ConfigError
from nemo_resiliency_plugins.runtime import rng
from nemo_resiliency_plugins.runtime.checkpoint import loadable

if TYPE_CHECKING:
    from nemo_resiliency_plugins.runtime.agreement import Ranks

FLAT = StateDictOptions(flatten_optimizer_state_dict=True)
RNG = "rng"
WRAPPERS = ("module", "_orig_mod", "_checkpoint_wrapped_module")
"""Parts of parameter names that DDP, torch.compile and activation checkpointing add, and torch's state dicts drop."""


@dataclasses.dataclass(frozen=True)
class Content:
    """What one rank saves: tensors by flat name, and everything else it has, by object.

    ``write`` takes the place of :func:`dcp.write` where something else than this process holds the copy.
    """

    tensors: dict[str, torch.Tensor]
    host: dict[str, Any]
    write: Callable[[Path, Content, Ranks], list[Path]] | None = None


class TrainingState:
    """The objects to save and restore, by name.

    Parameters and optimizer states are saved under the parameters' names, sharded ones as shards, so that another
    world size can load them. Buffers, the ``state_dict()`` of any other object (a scheduler, a scaler, a data loader)
    and the random number generators are kept for each rank, since ranks may differ in them. So are the objects in
    ``own``, ours, which may be missing from a checkpoint: they then get an empty state.

    Raises:
        ConfigError: an object that cannot be saved or restored, or an optimizer without its model.
    """

    def __init__(self, objects: Mapping[str, Any], own: Mapping[str, Any] | None = None) -> None:
        for name, value in objects.items():
            _check(name, value)
        self._objects = dict(objects)
        self._own = dict(own or {})
        self.models = [value for value in objects.values() if isinstance(value, torch.nn.Module)]
        self._model_of = {
            name: _owner(name, value, self.models)
            for name, value in objects.items()
            if isinstance(value, torch.optim.Optimizer)
        }
        self.require_loadable()

    def gather(self) -> Content:
        """The present state; its tensors are those of the objects, not copies."""
        tensors: dict[str, torch.Tensor] = {}
        host: dict[str, Any] = {}
        for name, value in self._objects.items():
            host[name] = self._state_of(name, value)
            if name in self._model_of or isinstance(value, torch.nn.Module):
                own = _buffers(value) if isinstance(value, torch.nn.Module) else set()
                shared = {
                    key for key, entry in host[name].items() if torch.is_tensor(entry) and _place(entry) not in own
                }
                tensors.update({f"{name}.{key}": host[name][key] for key in shared})
                host[name] = {key: entry for key, entry in host[name].items() if key not in shared}
        ours = {name: value.state_dict() for name, value in self._own.items()}
        return Content(tensors, {**host, **ours, RNG: rng.capture()})

    def scatter(self, content: Content) -> None:
        """Give the objects what :meth:`gather` took, with the tensors filled by a load.

        Raises:
            CheckpointError: the objects are of another kind than those that were saved.
        """
        try:
            for name, value in self._objects.items():
                self._restore(name, value, content.tensors, content.host[name])
            for name, value in self._own.items():
                value.load_state_dict(content.host.get(name, {}))
            rng.restore(content.host[RNG])
        except (KeyError, ValueError, RuntimeError, TypeError, AttributeError) as error:
            remedy = "Has the model, optimizer or scheduler changed since the save?"
            raise CheckpointError(f"the saved state does not fit: {type(error).__name__}: {error}. {remedy}") from error

    def leave_out(self, tensors: Mapping[str, torch.Tensor], known: Iterable[str]) -> dict[str, torch.Tensor]:
        """``tensors`` without the optimizer states that the checkpoint does not have.

        To have something to load into, torch gives every parameter a state; one that had no gradient yet when the
        state was saved (a head that is not used, an expert that no token reached) had none.
        """
        saved = {key.rpartition(".")[0] for key in known}
        left = dict(tensors)
        for name, model in self._model_of.items():
            if not any(key.startswith(f"{name}.state.") for key in saved):
                continue  # another optimizer: that is an error, not a parameter without gradients
            for long_name, parameter in model.named_parameters():
                prefix = f"{name}.state.{_plain(long_name)}"
                missing = [key for key in left if key.rpartition(".")[0] == prefix] if prefix not in saved else []
                if missing:
                    self._objects[name].state.pop(parameter, None)
                    left = {key: value for key, value in left.items() if key not in missing}
        return left

    def require_loadable(self) -> None:
        """Raises ConfigError for a state that a checkpoint could hold and nothing could read again."""
        for name, value in self._objects.items():
            if name in self._model_of or isinstance(value, torch.nn.Module):
                continue
            if loadable.problem_of(value.state_dict()):
                field = f"attach.state[{name!r}]"
                raise ConfigError(field, type(value).__name__, loadable.RULE, loadable.REMEDY)

    def _restore(self, name: str, value: Any, tensors: Mapping[str, torch.Tensor], host: Any) -> None:
        prefix = f"{name}."
        mine: dict[str, Any] = {key[len(prefix) :]: entry for key, entry in tensors.items() if key.startswith(prefix)}
        if name in self._model_of:
            set_optimizer_state_dict(self._model_of[name], value, {**mine, **host}, options=FLAT)
        elif isinstance(value, torch.nn.Module):
            if mine or host:
                set_model_state_dict(value, {**mine, **host})
        else:
            value.load_state_dict(host)

    def _state_of(self, name: str, value: Any) -> Any:
        if name in self._model_of:
            state = get_optimizer_state_dict(self._model_of[name], value, options=FLAT)
            return {key: loadable.plain_numbers(entry) for key, entry in state.items()}
        if isinstance(value, torch.nn.Module):
            # torch 2.13 asks for a process group when a module has nothing to save.
            return get_model_state_dict(value) if value.state_dict() else {}
        return value.state_dict()


def _buffers(module: torch.nn.Module) -> set[int]:
    return {_place(buffer) for buffer in module.buffers() if not isinstance(buffer, DTensor)}


def _place(tensor: torch.Tensor) -> int:
    """Where the memory of a tensor begins; 0 for a sharded one."""
    return 0 if isinstance(tensor, DTensor) else tensor.untyped_storage().data_ptr()


def _plain(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def _check(name: str, value: Any) -> None:
    field = f"attach.state[{name!r}]"
    if not name or "." in name or name == RNG:
        raise ConfigError("attach.state", name, f"names are not empty, not {RNG!r} and without dots", "Rename it.")
    if not (callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))):
        raise ConfigError(field, type(value).__name__, "needs state_dict() and load_state_dict()", "Wrap it.")
    if isinstance(value, torch.optim.Optimizer):
        if isinstance(value, torch.optim.LBFGS):
            rule = "keeps a history that torch.distributed.checkpoint cannot save"
            raise ConfigError(field, "LBFGS", rule, "Use another optimizer, or save=, load= and latest=.")
        if not all(group["params"] for group in value.param_groups):
            rule = "has an empty parameter group, which torch.distributed.checkpoint cannot restore"
            raise ConfigError(field, type(value).__name__, rule, "Leave the empty group out.")


def _owner(name: str, optimizer: torch.optim.Optimizer, models: Iterable[torch.nn.Module]) -> torch.nn.Module:
    wanted = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for model in models:
        if wanted <= {id(parameter) for parameter in model.parameters()}:
            return model
    rule = "all of its parameters must be those of one module in state"
    remedy = "Add that module; wrap several in one module, such as an nn.ModuleDict."
    raise ConfigError(f"attach.state[{name!r}]", type(optimizer).__name__, rule, remedy)
