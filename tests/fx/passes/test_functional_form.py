"""In-place writes become new values exactly where they are invisible."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from building import Calling
from torch import Tensor

import fx
from fx.canonical import canonical_form
from fx.passes.functional_form import make_functional, written_operand


def functional(function: Callable[..., Any], *inputs: Tensor) -> fx.GraphModule:
    """Return the functional form after checking that its results and its writes to inputs are the same."""
    program = canonical_form(fx.symbolic_trace(function)).graph_module
    make_functional(program, lambda node: True)
    program.graph.lint()
    copies, expected_given = [tensor.clone() for tensor in inputs], [tensor.clone() for tensor in inputs]
    actual, expected = program(*copies), function(*expected_given)
    torch.testing.assert_close((actual, copies), (expected, expected_given), rtol=0, atol=0)
    return program


def writes(program: fx.GraphModule) -> int:
    return sum(written_operand(node) is not None for node in program.graph.nodes)


METHODS = {
    "mul_": lambda y: y.mul_(2),
    "clamp_": lambda y: y.clamp_(min=0),
    "clip_": lambda y: y.clip_(0, 1),
    "add_scaled": lambda y: y.add_(torch.ones(3), alpha=2),
    "div_floor": lambda y: y.div_(2, rounding_mode="floor"),
    "exp_": torch.exp_,
    "sigmoid_": lambda y: y.sigmoid_(),
    "pow_": lambda y: y.pow_(2),
    "elu_": F.elu_,
    "hardtanh_": F.hardtanh_,
    "inplace": lambda y: F.silu(y, inplace=True),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_write_to_an_own_value_becomes_a_new_value(name: str) -> None:
    def function(x: Tensor) -> Tensor:
        return METHODS[name](x.neg()) + 1

    assert writes(functional(function, torch.rand(3))) == 0


@pytest.mark.parametrize("name", METHODS)
def test_later_uses_of_a_written_value_read_the_new_one(name: str) -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.neg()
        before = y + 1
        METHODS[name](y)
        return before, y + 2

    assert writes(functional(function, torch.rand(3))) == 0


def test_each_of_several_writes_is_seen_by_later_reads() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        y = x.neg()
        z = y.mul_(2)
        first = y + 1
        F.relu(y, inplace=True)
        second = z + 1
        y.add_(x)
        return first, second, y, z

    assert writes(functional(function, torch.randn(3))) == 0


def of_an_input(x: Tensor) -> Tensor:
    return x.mul_(2) + 1


def of_what_a_view_shows(x: Tensor) -> Tensor:
    y = x.neg()
    view = y.view(-1)
    y.clamp_(min=0)
    return view + 1


def through_a_view(x: Tensor) -> Tensor:
    y = x.neg()
    y[0].mul_(2)
    return y + 1


@pytest.mark.parametrize(
    "function",
    [
        of_an_input,
        of_what_a_view_shows,
        through_a_view,
        Calling(lambda m, x: m.count.mul_(x[0]) + x, count=torch.zeros(3)),
    ],
)
def test_visible_writes_stay(function: Any) -> None:
    assert writes(functional(function, torch.randn(2, 3))) == 1


def test_a_view_that_nothing_reads_afterwards_is_no_obstacle() -> None:
    def function(x: Tensor) -> Tensor:
        y = x.neg()
        total = y.view(-1).sum()
        return y.mul_(2) + total

    assert writes(functional(function, torch.randn(2, 3))) == 0


def test_operations_that_would_change_the_dtype_stay() -> None:
    program = canonical_form(fx.symbolic_trace(lambda x: x.neg().mul_(2))).graph_module
    assert make_functional(program, lambda node: False) == [] and writes(program) == 1
