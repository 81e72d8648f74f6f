"""Which ranks train and which wait, by NVRx's in-process rank assignment (0.4.1 to 0.7.0 have the same interface)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Plan:
    """How many ranks train, and which leave together.

    Attributes:
        active: ranks that train; None: all.
        node: the node of this process, where ranks of one node leave together; else None.
    """

    active: int | None
    node: str | None


class TooFewRanks(Exception):
    """Not enough ranks are left for the training."""


class Discarded(Exception):
    """This rank is well, but others of its node are not."""


class UnevenNodes(Exception):
    """The ranks cannot leave node by node: ``ranks`` of each node, of which ``active`` train."""

    def __init__(self, ranks: dict[str, int], active: int) -> None:
        super().__init__(ranks, active)
        self.ranks, self.active = ranks, active


def assignment(module: Any, plan: Plan, lost: Callable[[int, set[int]], None]) -> Any:
    """Keeps the number of active ranks; ``lost`` is told the iteration and the ranks that will not come back.

    Nodes are told apart by the name that ``plan`` gives, since several can share a host name.
    """
    ranks = module.rank_assignment

    class Assignment(ranks.RankAssignment):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self.tree: Any = None

        def __call__(self, ctx: Any) -> Any:
            if self.tree is None:
                self.tree = ranks.Tree(_layers(ranks, plan, ctx))
            if ctx.terminated_ranks:
                lost(ctx.state.iteration, set(ctx.terminated_ranks))
            count = len(ctx.terminated_ranks)
            try:
                return self.tree(ctx)
            except ranks.RankDiscarded as error:
                if all(leaf.state.mode.name == "TERMINATED" for leaf in self.tree.tree.iter_leaves()):
                    raise TooFewRanks(f"{count} of {ctx.state.world_size} ranks were lost") from error
                raise Discarded(str(error)) from error

    return Assignment()


def _layers(ranks: Any, plan: Plan, ctx: Any) -> list[Any]:
    world_size = ctx.state.world_size
    active = world_size if plan.active is None else plan.active
    reserve = ranks.LayerFlag.RESERVE
    root = ranks.Layer(min_ranks=active, max_ranks=active, flag=reserve)
    if plan.node is None:
        return [root]
    store, key = ctx.store, f"node_of/{ctx.state.rank}"
    store.set(key, plan.node)
    nodes = [store.get(f"node_of/{rank}").decode() for rank in range(world_size)]
    size = nodes.count(plan.node)
    if active % size or any(nodes.count(node) != size for node in nodes):
        raise UnevenNodes({node: nodes.count(node) for node in nodes}, active)
    return [root, ranks.Layer(min_ranks=size, max_ranks=size, key_or_fn=lambda _: plan.node, flag=reserve)]
