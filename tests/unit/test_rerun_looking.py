"""What result validation reads of a step, and what of it is known before the backward pass."""

from __future__ import annotations

import weakref
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


@pytest.mark.parametrize("bad", [complex(1, float("inf")), complex(float("nan"), 0)])
def test_complex_gradients_are_looked_at_in_both_parts(bad: complex) -> None:
    parameter = nn.Parameter(torch.zeros(3, dtype=torch.complex64))
    parameter.grad = torch.ones(3, dtype=torch.complex64)
    check = GradientCheck([parameter], Ranks())
    check.begin()
    assert not check.is_suspect()
    parameter.grad[1] = bad
    check.begin()
    assert (check.is_suspect(), check.count()) == (True, 1)


def returned() -> Tensor:
    loss = WEIGHT.square().sum()
    loss.backward()
    return loss


def detached() -> Tensor:
    return returned().detach()


def together() -> list[Tensor]:
    losses = [WEIGHT.sum(), WEIGHT.square().sum()]
    torch.autograd.backward(iter(losses))
    return losses


def divided() -> Tensor:
    loss = WEIGHT.square().sum() / 2
    loss.backward()
    return loss


def reduced_in_place() -> Tensor:
    """As collectives do it: without a new version."""
    loss = returned().detach()
    loss.data.mul_(2)
    return loss


def scaled_afterwards() -> Tensor:
    return returned() * 2


def changed_afterwards() -> Tensor:
    return returned().detach().mul_(2)


def divided_for_backward_alone() -> Tensor:
    loss = WEIGHT.square().sum()
    (loss / 2).backward()
    return loss


def under_inference_mode() -> Tensor:
    loss = returned()
    with torch.inference_mode():
        return loss * 1.0


def without_backward() -> Tensor:
    return WEIGHT.square().sum()


def by_another_way() -> Tensor:
    loss = WEIGHT.square().sum()
    torch.autograd.grad(loss, WEIGHT)
    return loss


@pytest.mark.parametrize("function", [returned, detached, together, divided, reduced_in_place])
def test_a_loss_has_its_value_before_the_backward_pass_from_it(function: Callable[[], object]) -> None:
    done = Passes(BackwardCalls()).run(function, ())
    values = {together: [2.0, 2.0], divided: [1.0]}.get(function, [2.0])  # type: ignore[call-overload]
    assert [loss.root and float(loss.root.value) for loss in done.losses] == values
    assert Looking().look(done.losses) == values


@pytest.mark.parametrize(
    "function",
    [
        scaled_afterwards,
        changed_afterwards,
        divided_for_backward_alone,
        under_inference_mode,
        without_backward,
        by_another_way,
    ],
)
def test_another_tensor_than_the_one_of_the_backward_pass_is_not_read_early(function: Callable[[], object]) -> None:
    done = Passes(BackwardCalls()).run(function, ())
    assert [loss.root for loss in done.losses] == [None]
    assert Looking().look(done.losses) == [float(loss.value) for loss in done.losses]


def test_each_micro_batch_has_a_value_of_its_own_although_the_memory_is_the_same() -> None:
    same = torch.zeros(())

    def forward_backward(value: float) -> Tensor:
        (WEIGHT.sum() * 0 + value).backward()
        return same.fill_(value)

    done = Passes(BackwardCalls()).run(forward_backward, [1.0, 2.0, 3.0])
    assert Looking().look(done.losses) == [1.0, 2.0, 3.0]
    assert float(done.loss) == 6.0


def test_stage_outputs_are_not_held() -> None:
    held: list[weakref.ref[Tensor]] = []

    def a_stage_in_the_middle() -> list[Tensor]:
        output = WEIGHT * torch.ones(1000, 2)
        held.append(weakref.ref(output.untyped_storage()))  # type: ignore[arg-type]
        torch.autograd.backward([output], [torch.ones_like(output)])
        return []

    calls = BackwardCalls()
    Passes(calls).run(a_stage_in_the_middle, ())
    assert held[0]() is None


def test_backward_is_itself_again_also_after_an_error() -> None:
    before = torch.autograd.backward
    with pytest.raises(ZeroDivisionError):
        Passes(BackwardCalls()).run(lambda: 1 // 0, ())
    assert torch.autograd.backward is before


def test_a_library_that_replaces_backward_in_the_step_keeps_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    own = torch.autograd.backward
    Passes(BackwardCalls()).run(lambda: monkeypatch.setattr(torch.autograd, "backward", len) or 1.0, ())
    assert torch.autograd.backward is len
    monkeypatch.undo()
    torch.autograd.backward = own
