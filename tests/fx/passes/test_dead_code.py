"""Operations whose value nothing uses are dropped, unless they have an effect."""

from __future__ import annotations

from typing import Any

import torch

import fx
from fx.passes import RemoveDeadCode, exact


def program_of(function: Any) -> fx.GraphModule:
    return fx.symbolic_trace(function)


def test_dead_code_goes_and_effects_stay() -> None:
    def function(x: Any) -> Any:
        torch.relu(x + 1)
        y = x * 2
        y.add_(1)
        return y

    program = program_of(function)
    assert RemoveDeadCode()(program) is program
    assert [node.name for node in program.graph.nodes] == ["x", "mul", "add_", "output"]
    assert "relu" not in program.code
    assert torch.equal(program(torch.ones(2)), torch.full((2,), 3.0))


def test_a_program_without_dead_code_is_left_alone() -> None:
    program = program_of(lambda x: x + 1)
    revision = program.graph.revision
    RemoveDeadCode()(program)
    assert program.graph.revision == revision


def test_it_promises_exact_results() -> None:
    assert RemoveDeadCode().contract is exact
