"""In-place writes become new values exactly where they are invisible."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from building import Calling
from torch import Tensor, nn

import fx
from fx.canonical import canonical_form
from fx.lowering.plan import make_functional
from fx.passes import ShapeProp


def captured(function: Any) -> fx.GraphModule:
    """The captured program, its additions in place, which capture itself never records."""
    program = fx.symbolic_trace(function)
    for node in program.graph.find_nodes(op="call_function", target=operator.add):
        if isinstance(node.args[1], fx.Node):
            node.target = operator.iadd
    program.recompile()
    return program


def functional(function: Callable[..., Any], *inputs: Tensor) -> tuple[int, fx.GraphModule]:
    """Return how many operations were replaced; the program computes the same, and writes the same to its inputs."""
    program = canonical_form(captured(function)).graph_module
    ShapeProp(program, fake=True).propagate(*inputs)
    replaced = len(make_functional(program))
    program.graph.lint()
    copies, expected_given = [tensor.clone() for tensor in inputs], [tensor.clone() for tensor in inputs]
    actual, expected = program(*copies), captured(function)(*expected_given)
    torch.testing.assert_close((actual, copies), (expected, expected_given), rtol=0, atol=0)
    return replaced, program


def test_activations_and_sums_of_own_values_become_functional() -> None:
    def function(x: Tensor) -> Tensor:
        y = x.neg() + x
        y = F.relu(y, inplace=True)
        return y * 2

    replaced, program = functional(function, torch.randn(3))
    assert replaced == 2
    assert not program.graph.find_nodes(op="call_function", target=operator.iadd)
    assert "inplace = True" not in program.code


def test_later_uses_of_a_written_value_read_the_new_one() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.neg()
        before = y + 1
        F.relu(y, inplace=True)
        return before, y + 2

    assert functional(function, torch.randn(5))[0] == 1


def of_input(x: Tensor) -> Tensor:
    return F.relu(x, inplace=True) + 1


def of_a_view(x: Tensor) -> Tensor:
    y = x.neg()
    view = y.view(-1)
    F.relu(y, inplace=True)
    return view + 1


def through_a_view(x: Tensor) -> Tensor:
    y = x.neg()
    view = y.view(-1)
    F.relu(view, inplace=True)
    return y + 1


def that_is_kept_in_a_list(x: Tensor) -> list[Tensor]:
    y = x.neg()
    held_values = [y]
    F.relu(y, inplace=True)
    return held_values


@pytest.mark.parametrize("function", [of_input, of_a_view, through_a_view])
def test_visible_writes_stay(function: Any) -> None:
    assert functional(function, torch.randn(2, 3))[0] == 0


def test_a_program_that_writes_to_a_value_in_a_container_stays_right() -> None:
    functional(that_is_kept_in_a_list, torch.randn(4))


def test_writes_to_buffers_stay() -> None:
    count = nn.Parameter(torch.zeros(3), requires_grad=False)
    program = canonical_form(captured(Calling(lambda self, x: (self.count + x) * 2, count=count))).graph_module
    assert make_functional(program) == []


def test_sums_of_different_and_of_unknown_dtypes_stay_as_a_write_keeps_the_dtype() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return x.neg() + y

    assert functional(function, torch.randn(3), torch.randn(3, dtype=torch.float64))[0] == 0
    assert functional(function, torch.randn(3), torch.randn(3))[0] == 1
    assert make_functional(canonical_form(captured(function)).graph_module) == []
