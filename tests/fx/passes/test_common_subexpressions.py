"""Equal operations on the same arguments are computed once, unless the difference is visible."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from building import Calling
from torch import nn

import fx
from fx.passes.common_subexpressions import EliminateCommonSubexpressions


def names(program: fx.GraphModule) -> list[str]:
    return [node.name for node in program.graph.nodes if node.op not in ("placeholder", "output")]


def merged(function: Any) -> fx.GraphModule:
    return EliminateCommonSubexpressions()(fx.symbolic_trace(function))


def test_equal_calls_become_one() -> None:
    function: Any = lambda x: torch.relu(x).view(-1) + torch.relu(x).view(-1) * x.size(0) + x.size(0)  # noqa: E731
    program = merged(function)
    assert program.code.strip() == (
        "def forward(self, x):\n"
        "    relu = torch.relu(x)\n"
        "    view = relu.view(-1);  relu = None\n"
        "    size = x.size(0);  x = None\n"
        "    mul = view * size\n"
        "    add = view + mul;  view = mul = None\n"
        "    add_1 = add + size;  add = size = None\n"
        "    return add_1"
    )
    x = torch.randn(2, 2)
    assert torch.equal(program(x), function(x))


def test_modules_and_attributes_are_merged_by_path() -> None:
    model = Calling(
        lambda m, x: m.linear(x) * m.weight + m.linear(x) * m.weight,
        linear=nn.Linear(2, 2),
        weight=nn.Parameter(torch.ones(2)),
    )
    graph = fx.Tracer().trace(model)
    with graph.inserting_before(graph.output_node()):
        again = graph.get_attr("weight")
        graph.output_node().args = (graph.call_function(torch.mul, (graph.output_node().args[0], again)),)
    program = EliminateCommonSubexpressions()(fx.GraphModule(model, graph))
    assert names(program) == ["linear", "weight", "mul", "add", "mul_2"]
    x = torch.randn(3, 2)
    assert torch.equal(program(x), model(x) * model.weight)


LITERALS = [1, 1.0, True, 0.0, -0.0, math.nan, math.inf, 1j, "1", None, (1,), [1], (1.0,), torch.Size([1])]


def test_literals_are_equal_only_in_type_and_bits() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    for literal in LITERALS:
        for _ in range(2):
            graph.call_function(isinstance, (x, literal))
            graph.call_function(isinstance, (x,), {"b": literal})
    graph.output(None)
    program = EliminateCommonSubexpressions()(fx.GraphModule({}, graph))
    assert len(names(program)) == 2 * len(LITERALS)


def test_slices_dicts_and_nested_arguments_are_compared_whole() -> None:
    def function(x: Any, y: Any) -> Any:
        return torch.cat([x[0:2], y[0:2]]) + torch.cat([x[0:2], y[0:2]]) + torch.cat([y[0:2], x[0:2]]) + x[0:3].sum()

    program = merged(function)
    assert [name for name in names(program) if name.startswith(("getitem", "cat"))] == [
        "getitem",
        "getitem_1",
        "cat",
        "cat_2",
        "getitem_6",
    ]


def test_operands_are_not_reordered() -> None:
    assert names(merged(lambda x, y: (x + y) * (y + x))) == ["add", "add_1", "mul"]


def test_the_survivor_represents_both_lines() -> None:
    program = merged(lambda x: torch.relu(x) + torch.relu(x))
    (relu,) = program.graph.find_nodes(op="call_function", target=torch.relu)
    assert relu.origins == ("relu", "relu_1")


def mode_between(x: Any) -> Any:
    first = torch.relu(x)
    with torch.no_grad():
        pass
    return first + torch.relu(x)


LEFT_ALONE: list[tuple[Any, str]] = [
    (lambda x: torch.rand_like(x) + torch.rand_like(x), "`%rand_like` draws random numbers"),
    (lambda x: (torch.relu(x), torch.relu(x)), "`%relu` and `%relu_1` may both be returned or kept, as two objects"),
    (lambda x: torch.relu(x) + x.add_(1) + torch.relu(x), "`%add_` writes to `%x`"),
    (lambda x: torch.relu(x) + torch.relu(x).add_(1), "`%add_` writes to `%relu_1`"),
    (lambda x: torch.relu_(x) + torch.relu_(x), "`%relu_` writes to `%x`"),
]


@pytest.mark.parametrize("function, reason", LEFT_ALONE)
def test_repetitions_that_are_left_alone_are_explained(function: Any, reason: str) -> None:
    program = fx.symbolic_trace(function)
    (repetition,) = EliminateCommonSubexpressions().explain(program)
    assert repetition.reason.startswith(reason) and not repetition.is_edited
    assert repetition.where is not None
    revision = program.graph.revision
    EliminateCommonSubexpressions()(program)
    assert program.graph.revision == revision


def test_merged_nodes_are_explained_as_well() -> None:
    program = fx.symbolic_trace(lambda x: torch.relu(x) + torch.relu(x))
    (repetition,) = EliminateCommonSubexpressions().explain(program)
    assert repetition.is_edited and repetition.reason == "`%relu` takes the place of `%relu_1`"
    assert len(names(program)) == 3


def test_dropout_is_merged_in_evaluation_only() -> None:
    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dropout = nn.Dropout()

        def forward(self, x: Any) -> Any:
            return self.dropout(x) + self.dropout(x)

    assert len(names(merged(Dropping().train()))) == 3
    assert len(names(merged(Dropping().eval()))) == 2
