"""Whether what is saved beside tensors could be loaded again: asked at each save, since types may change."""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch

from nemo_resiliency_plugins.errors import CheckpointError

RULE = "its state_dict() must hold plain types and tensors, to be loaded without running code"
REMEDY = "Convert NumPy values with .item() or .tolist(), dates and paths to str."


def problem_of(value: Any) -> str | None:
    """Why ``torch.load(weights_only=True)`` would refuse ``value``, in a line."""
    buffer = io.BytesIO()
    try:
        torch.save(_without_tensors(value), buffer)
        buffer.seek(0)
        torch.load(buffer, weights_only=True)
    except (pickle.PicklingError, pickle.UnpicklingError, AttributeError, TypeError) as error:
        return f"{type(error).__name__}: {str(error).strip()}".splitlines()[0]
    return None


def require(host: Mapping[str, Any]) -> None:
    """Raises CheckpointError for the first entry that a checkpoint could hold and nothing could read again."""
    for name, value in host.items():
        if problem_of(value):
            raise CheckpointError(f"{name!r} could not be resumed from: {RULE}. {REMEDY}")


def plain_numbers(value: Any) -> Any:
    """A NumPy number, such as a learning rate from ``numpy.cos``, as the same number of Python's."""
    is_numpys = type(value).__module__ == "numpy" and not getattr(value, "shape", (0,))
    return value.item() if is_numpys and hasattr(value, "item") else value


def _without_tensors(value: Any) -> Any:
    """Tensors are always loadable, and need not be written twice."""
    if type(value) is torch.Tensor:
        return None
    if type(value) in (dict, OrderedDict):
        return type(value)((key, _without_tensors(entry)) for key, entry in value.items())
    return type(value)(map(_without_tensors, value)) if type(value) in (list, tuple) else value
