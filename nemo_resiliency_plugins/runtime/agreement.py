"""How the ranks agree: small collectives on a CPU group of our own, never on the GPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any, ClassVar, TypeVar, cast

from nemo_resiliency_plugins.errors import CheckpointError, ResiliencyError

Json = TypeVar("Json", bound="int | None")
Value = TypeVar("Value")


class Ranks:
    """All ranks of the job, or this process alone where no process group exists.

    Args:
        process_group: a group with a CPU backend over all ranks; None makes one.
        timeout: after which its collectives fail, if one is made; None takes torch's default.

    Every method is a collective and must be called by all ranks in the same order.
    """

    _met: ClassVar[Any] = None
    """The last barrier, kept, since otherwise gloo's thread frees it: for that it needs the interpreter, and aborts the
    process where that has ended, as it does soon after the last barrier (torch 2.13)."""

    def __init__(self, process_group: Any = None, timeout: timedelta | None = None) -> None:
        import torch.distributed as dist

        self._dist = dist
        self.alone = not (dist.is_available() and dist.is_initialized())
        self.group = None if self.alone else process_group or dist.new_group(backend="gloo", timeout=timeout)
        self.rank = 0 if self.alone else dist.get_rank()
        self.world_size = 1 if self.alone else dist.get_world_size()

    @property
    def dissolved(self) -> bool:
        """Whether the process group has been destroyed since."""
        return not (self.alone or self._dist.is_initialized())

    def maximum(self, values: list[float]) -> list[float]:
        """The element-wise maximum over all ranks."""
        return list(values) if self.alone or not values else self._reduced(values)[1]

    def barrier(self) -> None:
        """Return when all ranks are here."""
        if not self.alone:
            Ranks._met, _ = self._reduced([0.0])

    def _reduced(self, values: list[float]) -> tuple[Any, list[float]]:
        """torch's handle of the collective, and the maximum."""
        import torch

        tensor = torch.tensor(values, dtype=torch.float64)
        work = self._dist.all_reduce(tensor, op=self._dist.ReduceOp.MAX, group=self.group, async_op=True)
        work.wait()
        return work, [float(value) for value in tensor]

    def decide(self, on_rank0: Callable[[], Json]) -> Json:
        """Do something on rank 0 and give its answer to all ranks.

        Raises:
            CheckpointError: on all ranks, where rank 0 met an OSError or an error of this package.
        """
        answer: dict[str, Any] = {}
        if self.rank == 0:
            try:
                answer = {"value": on_rank0()}
            except (OSError, ResiliencyError) as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
        answer = answer if self.alone else json.loads(self._text_from_rank0(json.dumps(answer)))
        if "error" in answer:
            raise CheckpointError(answer["error"])
        value: Json = answer["value"]
        return value

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, in their order; what JSON can hold."""
        if self.alone:
            return [value]
        texts: list[str] = [""] * self.world_size
        self._dist.all_gather_object(texts, json.dumps(value), group=self.group)
        return [json.loads(text) for text in texts]

    def first_problem(self, problem: str | None) -> str | None:
        """The problem of the lowest rank that has one, on all ranks."""
        return next((text for text in self.gather(problem) if text is not None), None)

    def each(self, action: Callable[[], Value]) -> Value:
        """Do something on every rank; it must hold no collective that one rank could leave alone.

        Raises:
            CheckpointError: on all ranks, where one met an OSError, torch's RuntimeError, or an error of this package.
        """
        problem = result = None
        try:
            result = action()
        except (OSError, RuntimeError, ResiliencyError) as error:
            problem = f"{type(error).__name__}: {error}"
        if first := self.first_problem(problem):
            raise CheckpointError(first)
        return cast(Value, result)

    def _text_from_rank0(self, text: str) -> str:
        import torch

        content = torch.tensor(list(text.encode()), dtype=torch.uint8)
        length = torch.tensor([len(content)])
        self._dist.broadcast(length, src=0, group=self.group)
        if self.rank != 0:
            content = torch.empty(int(length), dtype=torch.uint8)
        self._dist.broadcast(content, src=0, group=self.group)
        return bytes(content.tolist()).decode()
