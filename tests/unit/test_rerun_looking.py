"""What result validation reads of a step, and what of it is known before the backward pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from nemo_resiliency_plugins.runtime.agreement import Ranks
from nemo_resiliency_plugins.runtime.rerun.ahead import BackwardCalls
from nemo_resiliency_plugins.runtime.rerun.gradients import GradientCheck
from nemo_resiliency_plugins.runtime.rerun.looking import Looking
from nemo_resiliency_plugins.runtime.rerun.replay import Passes

WEIGHT = nn.Parameter(torch.ones(2))
Tensor = torch.Tensor


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("bad", [float("inf"), -float("inf"), float("nan")])
def test_every_bad_element_of_the_gradients_is_counted_and_large_ones_are_not(dtype: torch.dtype, bad: float) -> None:
    parameters = [
        nn.Parameter(torch.zeros(1000, dtype=dtype)),
        nn.Parameter(torch.zeros(3)),
        nn.Parameter(torch.ones(1)),
    ]
    check = GradientCheck(parameters, Ranks())
    check.begin()
    assert not check.is_suspect(), "there are no gradients yet"
    parameters[0].grad = torch.full((1000,), torch.finfo(dtype).max, dtype=dtype)
    parameters[1].grad = torch.ones(3)
    assert check.count() == 0
    parameters[0].grad[7] = bad
    parameters[1].grad[1] = -bad
    check.begin()
    assert check.is_suspect()
    assert check.count() == 2


def test_gradients_that_are_all_finite_are_not_suspect() -> None:
    WEIGHT.grad = torch.ones(2)
    check = GradientCheck([WEIGHT], Ranks())
    check.begin()
    assert not check.is_suspect()


def returned() -> Tensor:
    loss = WEIGHT.square().sum()
    loss.backward()
    return loss


def detached() -> Tensor:
    return returned().detach()


def scaled_for_backward() -> Tensor:
    loss = WEIGHT.square().sum()
    (loss / 2).backward()
    return loss


def together() -> list[Tensor]:
    losses = [WEIGHT.sum(), WEIGHT.square().sum()]
    torch.autograd.backward(losses)
    return losses


def scaled_afterwards() -> Tensor:
    return returned() * 2


def changed_afterwards() -> Tensor:
    return returned().detach().mul_(2)


def quietly_changed_afterwards() -> Tensor:
    loss = WEIGHT.square().sum()
    (loss / 2).backward()
    with torch.no_grad():
        loss.mul_(2)
    return loss


def detached_and_scaled_for_backward() -> Tensor:
    return scaled_for_backward().detach()


def without_backward() -> Tensor:
    return WEIGHT.square().sum()


def by_another_way() -> Tensor:
    loss = WEIGHT.square().sum()
    torch.autograd.grad(loss, WEIGHT)
    return loss


@pytest.mark.parametrize("function", [returned, detached, scaled_for_backward, together])
def test_a_loss_is_known_before_the_backward_pass_that_it_was_made_for(function: Callable[[], object]) -> None:
    done = Passes(BackwardCalls()).run(function, ())
    assert all(loss.behind is not None for loss in done.losses)


@pytest.mark.parametrize(
    "function",
    [
        scaled_afterwards,
        changed_afterwards,
        quietly_changed_afterwards,
        detached_and_scaled_for_backward,
        without_backward,
        by_another_way,
    ],
)
def test_a_loss_that_may_have_changed_since_is_not_read_early(function: Callable[[], object]) -> None:
    done = Passes(BackwardCalls()).run(function, ())
    assert [loss.behind for loss in done.losses] == [None]


def test_each_micro_batch_has_a_backward_pass_of_its_own() -> None:
    done = Passes(BackwardCalls()).run(lambda _: returned(), range(3))
    roots = [loss.behind for loss in done.losses]
    assert len({id(root) for root in roots}) == 3
    assert Looking().look(done.losses) == [2.0, 2.0, 2.0]


def test_backward_is_itself_again_also_after_an_error() -> None:
    before = torch.autograd.backward
    with pytest.raises(ZeroDivisionError):
        Passes(BackwardCalls()).run(lambda: 1 // 0, ())
    assert torch.autograd.backward is before
