"""Unused operations are dropped, unless they have a visible effect."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fx
from fx.passes import RemoveDeadCode
from fx.pipelines.rewriting import make_edits


def names(program: fx.GraphModule) -> list[str]:
    return [node.name for node in program.graph.nodes if node.op not in ("placeholder", "output")]


def reasons(program: fx.GraphModule) -> list[str]:
    """Return the reasons why unused nodes stay, without the user's lines."""
    return [re.sub(r", \S+\.py:\d+", "", entry.reason) for entry in RemoveDeadCode().explain(program)]


def test_dead_code_is_removed_and_effects_stay() -> None:
    def function(x: Any) -> Any:
        torch.relu(x + 1)
        y = x * 2
        y.add_(1)
        return y

    program = fx.symbolic_trace(function)
    assert RemoveDeadCode()(program) is program
    assert [node.name for node in program.graph.nodes] == ["x", "mul", "add_", "output"]
    assert "relu" not in program.code
    assert torch.equal(program(torch.ones(2)), torch.full((2,), 3.0))


def test_a_program_without_dead_code_is_left_alone() -> None:
    program = fx.symbolic_trace(lambda x: x + 1)
    revision = program.graph.revision
    RemoveDeadCode()(program)
    assert program.graph.revision == revision


def test_writes_to_memory_that_nothing_reads_any_more_go() -> None:
    def function(x: Any) -> Any:
        y = x * 2
        total = y.sum()
        y.add_(1)
        view = y.view(-1)
        view.mul_(3)
        F.relu(view, inplace=True)
        return total

    program = fx.symbolic_trace(function)
    RemoveDeadCode()(program)
    assert names(program) == ["mul", "sum_1"]
    assert torch.equal(program(torch.ones(2)), torch.tensor(4.0))


def test_an_unused_list_that_is_filled_is_removed() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    call = graph.call_function(list, ())
    graph.call_method("append", (call, graph.call_function(torch.relu, (x,))))
    graph.output(x)
    program = RemoveDeadCode()(fx.GraphModule({}, graph))
    assert names(program) == []


def keeper(x: Any) -> Any:
    return x


fx.wrap("keeper")


def test_unused_operations_that_stay_are_explained_with_the_users_line() -> None:
    def function(x: Any) -> Any:
        y = x * 2
        y.mul_(3)
        x.relu_()
        torch.rand(3)
        F.dropout(x)
        keeper(y)
        return y.sum()

    def draw(x: Any) -> Any:
        y = x * 2
        y.mul_(3)
        return y.view(-1)

    program = fx.symbolic_trace(draw)
    line = draw.__code__.co_firstlineno + 2
    (entry,) = RemoveDeadCode().explain(program)
    assert (entry.node, entry.reason) == ("mul_", f"`%mul_` writes to `%mul`, {__file__}:{line}, which `%view` reads")
    assert entry.where is not None and entry.where.line == line
    assert reasons(fx.symbolic_trace(function)) == [
        "`%mul_` writes to `%mul`, which functions without a schema were given and may have kept",
        "`%relu_` writes to `%x`, which may be memory of the caller",
        "`%rand` draws random numbers",
        "`%dropout` draws random numbers",
        "`%keeper` calls `test_dead_code.keeper`, which has no operator schema and is not declared pure",
    ]


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.linear = nn.Linear(3, 3)
        self.dropout = nn.Dropout()
        self.unused = nn.Parameter(torch.ones(3))
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x: Any) -> Any:
        self.norm(x)
        self.linear(x)
        self.dropout(x)
        x + self.unused
        return x * 2


@pytest.mark.parametrize("training, kept", [(True, ["norm", "dropout", "mul"]), (False, ["mul"])])
def test_unused_modules_go_if_they_do_nothing_in_their_mode(training: bool, kept: list[str]) -> None:
    model = Stateful().train(training)
    program = RemoveDeadCode()(fx.symbolic_trace(model))
    assert names(program) == kept
    x = torch.randn(4, 3)
    assert torch.equal(program(x), model(x))


def test_random_numbers_drawn_into_dead_memory_stay() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    call = graph.call_function(torch.empty, (3,))
    graph.call_method("normal_", (call,))
    graph.output(graph.call_function(torch.rand_like, (x,)))
    program = fx.GraphModule({}, graph)
    x = torch.ones(3)
    torch.manual_seed(0)
    expected = program(x)
    RemoveDeadCode()(program)
    torch.manual_seed(0)
    assert torch.equal(program(x), expected) and "normal_" in program.code


def test_programs_that_are_called_are_cleaned_too() -> None:
    inner = fx.symbolic_trace(lambda x: (torch.relu(x), x + 1)[1])
    root = nn.Module()
    root.inner = inner
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_module("inner", (graph.call_module("inner", (x,)),)))
    program = fx.GraphModule(root, graph)
    edits = make_edits(RemoveDeadCode(), program)
    assert [str(edit).partition(" (")[0] for edit in edits] == ["relu dropped"]
    assert "relu" not in program.inner.code
    assert torch.equal(program(torch.ones(1)), torch.full((1,), 3.0))


def test_it_stops_after_any_edit_with_a_whole_program() -> None:
    def function(x: Any) -> Any:
        y = x * 2
        y.add_(torch.relu(x))
        return x + 1

    for fuel in range(5):
        program = fx.symbolic_trace(function)
        edits = make_edits(RemoveDeadCode(), program, fuel=fuel)
        program.graph.lint()
        assert len(edits) == min(fuel, 3) == 4 - len(names(program))
        assert torch.equal(program(torch.ones(1)), torch.full((1,), 2.0))
