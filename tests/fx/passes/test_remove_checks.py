"""Recorded checks and the values that only they use are dropped, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from building import in_functions, names
from torch import nn

import fx
from fx.passes import RemoveChecks


class Checked(nn.Module):
    def forward(self, x: Any) -> Any:
        dead = torch.relu(x)  # noqa: F841
        if x.dim() != 2:
            raise ValueError(f"expected 2 dimensions, got {x.dim()}")
        rows = x.shape[0]
        assert rows > 1
        return x * rows


def test_checks_are_removed_with_the_values_that_only_they_used() -> None:
    program = fx.symbolic_trace(Checked())
    assert {"check", "_assert"} <= set(names(program).split())
    assert RemoveChecks()(program) is program
    assert names(program) == "x relu getattr_1 getitem mul output"
    x = torch.ones(3, 2)
    assert torch.equal(program(x), x * 3)


def test_inputs_that_break_a_check_are_no_longer_refused() -> None:
    program = fx.symbolic_trace(Checked())
    with pytest.raises(AssertionError):
        program(torch.ones(1, 1, 1))
    RemoveChecks()(program)
    assert program(torch.ones(1, 1, 1)).item() == 1


def test_operations_with_an_effect_stay_even_if_only_a_check_used_them() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.call_function(torch._assert, (graph.call_function(torch.rand, (2,)), "random"))
    graph.call_function(torch._assert, (graph.call_method("relu_", (x,)), "in place"))
    graph.output(x)
    program = RemoveChecks()(fx.GraphModule(nn.Module(), graph))
    assert names(program) == "x rand relu_ output"


def test_a_check_whose_value_is_used_stays() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(torch._assert, (x, "used")))
    assert names(RemoveChecks()(fx.GraphModule(nn.Module(), graph))) == "x _assert output"


def test_a_program_without_checks_is_left_alone() -> None:
    program = fx.symbolic_trace(nn.Sequential(nn.Linear(2, 2)))
    revision = program.graph.revision
    RemoveChecks()(program)
    assert program.graph.revision == revision


def test_a_long_condition_is_removed_as_a_whole() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    value = x
    for _ in range(2000):
        value = graph.call_function(torch.neg, (value,))
    graph.call_function(torch._assert, (value, "long"))
    graph.output(x)
    assert names(RemoveChecks()(fx.GraphModule(nn.Module(), graph))) == "x output"


def test_dimension_checks_of_batch_norm_are_dropped() -> None:
    model = nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1)).eval()
    program = in_functions(model)
    assert "check" in names(program)
    RemoveChecks()(program)
    assert "_assert" not in names(program) and "dim" not in names(program)
    x = torch.randn(2, 1, 3, 3)
    assert torch.equal(program(x), model(x))


def test_a_check_that_an_argument_is_none_is_dropped():
    program = fx.symbolic_trace(lambda x, y=None: torch.relu(x), concrete_args={"y": None})
    assert "assert_is_none" in program.code
    RemoveChecks()(program)
    assert "assert_is_none" not in program.code
    assert torch.equal(program(torch.ones(2), 3), torch.ones(2))
