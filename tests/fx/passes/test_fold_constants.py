"""Operations that depend on no input are computed once, unless the difference is visible."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import fx
from fx.passes.fold_constants import FoldConstants
from fx.pipelines.rewriting import make_edits


class State(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(6.0).reshape(2, 3))
        self.register_buffer("positions", torch.arange(2))
        self.register_buffer("count", torch.zeros(3))
        self.weight = nn.Parameter(torch.ones(2, 3))
        self.frozen = nn.Parameter(torch.ones(2, 3), requires_grad=False)
        self.embedding = nn.Embedding(2, 3)
        self.size = 4


Make = Callable[[fx.Graph, fx.Node], Any]


def program_of(make: Make) -> fx.GraphModule:
    """Return the program of one input ``x`` that returns the node from ``make``."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output(make(graph, x))
    torch.manual_seed(0)
    return fx.GraphModule(State(), graph)


def plus(make: Make) -> Make:
    """The input plus the node from ``make``."""
    return lambda graph, x: graph.call_function(operator.add, (x, make(graph, x)))


def call(target: Any, *args: Any, **kwargs: Any) -> Make:
    def make(graph: fx.Graph, x: fx.Node) -> fx.Node:
        arguments = tuple(argument(graph, x) if callable(argument) else argument for argument in args)
        return graph.create_node(
            "call_method" if isinstance(target, str) else "call_function", target, arguments, kwargs
        )

    return make


def fetch(path: str) -> Make:
    return lambda graph, x: graph.get_attr(path)


def nodes_of(program: fx.GraphModule) -> list[str]:
    return [
        str(n.target) if n.op == "get_attr" else n.name
        for n in program.graph.nodes
        if n.op not in ("placeholder", "output")
    ]


FOLDED: list[tuple[Make, list[str]]] = [
    (plus(call("t", fetch("table"))), ["_folded_0", "add"]),
    (plus(call(torch.exp, call(torch.mul, fetch("table"), 2))), ["_folded_0", "add"]),
    (plus(call(torch.mul, fetch("frozen"), fetch("table"))), ["_folded_0", "add"]),
    (plus(call("expand", fetch("table"), 5, 2, 3)), ["_folded_0", "add"]),
    (plus(call("__getitem__", fetch("table"), slice(0, 1))), ["_folded_0", "add"]),
    (plus(call(torch.arange, 3)), ["_folded_0", "add"]),
    (plus(call(torch.ones, 3, device=torch.device("cpu"))), ["_folded_0", "add"]),
    (plus(call("size", fetch("weight"), 0)), ["add"]),
    (plus(call(operator.getitem, call(getattr, fetch("weight"), "shape"), 1)), ["add"]),
    (plus(call(math.sqrt, call(operator.mul, fetch("size"), 2))), ["add"]),
    (plus(call(operator.neg, 0.0)), ["add"]),
    (plus(call(operator.truediv, math.inf, 2)), ["add"]),
    (plus(call("item", call("sum", fetch("table")))), ["add"]),
    (plus(call(operator.getitem, call("chunk", fetch("table"), 2), 1)), ["_folded_0", "add"]),
    (call("view", lambda graph, x: x, call("size", fetch("table"))), ["view"]),
]


@pytest.mark.parametrize("make, expected", FOLDED)
def test_values_that_depend_on_no_input_become_constants(make: Make, expected: list[str]) -> None:
    program, original = program_of(make), program_of(make)
    saved = list(program.state_dict())
    assert FoldConstants()(program) is program
    assert nodes_of(program) == expected
    for x in (torch.randn(2, 3), torch.randn(1, 1), torch.randn(3, 1)):
        try:
            result = original(x)
        except RuntimeError:
            continue
        assert torch.equal(program(x), result)
    assert list(program.state_dict()) == saved
    assert all(folding.is_edited for folding in FoldConstants().explain(program_of(make)))


def unknown(x: Any) -> Any:
    return x


REFUSED: list[tuple[Make, str]] = [
    (plus(call("t", fetch("weight"))), "`%t` depends on the parameter `weight`, which is trained unless freeze=True"),
    (
        plus(call("item", call("sum", call("detach", fetch("weight"))))),
        "`%item` depends on the parameter `weight`, which is trained unless freeze=True",
    ),
    (
        plus(lambda graph, x: graph.call_module("embedding", (graph.get_attr("positions"),))),
        "`%embedding` depends on the parameter `embedding.weight`, which is trained unless freeze=True",
    ),
    (plus(call(torch.rand, 3)), "`%rand` draws random numbers"),
    (
        call(torch.exp, fetch("table")),
        "`%exp` may be returned or kept, and the constant could be written to from outside",
    ),
    (
        plus(call(torch.repeat_interleave, fetch("table"), 10**6)),
        "`%repeat_interleave` would add 23999976 bytes, more than max_bytes=16777216",
    ),
    (plus(call(torch.ones, 10**9)), "`%ones` would add 4000000000 bytes, more than max_bytes=16777216"),
    (
        plus(call(torch.matmul, fetch("table"), fetch("table"))),
        "computing `%matmul` raises RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)",
    ),
    (
        plus(call(unknown, 3)),
        "`%unknown` calls `test_fold_constants.unknown`, which has no operator schema and is not declared pure",
    ),
    (
        plus(call(getattr, fetch("table"), "requires_grad")),
        "`%getattr_1` reads gradients, modes or seeds, which are known only when the program runs",
    ),
    (
        plus(call(torch.is_grad_enabled)),
        "`%is_grad_enabled` reads gradients, modes or seeds, which are known only when the program runs",
    ),
    (
        lambda graph, x: graph.call_function(sum, (graph.call_method("chunk", (graph.get_attr("table"), 2)), x)),
        "`%chunk` is a tuple, which is neither a tensor nor an immediate value",
    ),
]


@pytest.mark.parametrize("make, reason", REFUSED)
def test_unfolded_values_are_explained(make: Make, reason: str) -> None:
    program = program_of(make)
    foldings = FoldConstants().explain(program)
    assert next(folding.reason for folding in foldings if not folding.is_edited) == reason
    before = nodes_of(program)
    FoldConstants()(program)
    assert nodes_of(program) == before


def test_written_values_are_not_constant() -> None:
    def make(graph: fx.Graph, x: fx.Node) -> fx.Node:
        count = graph.get_attr("count")
        graph.call_method("add_", (count, 1))
        return graph.call_function(operator.add, (x, graph.call_function(torch.mul, (count, 2))))

    program = program_of(make)
    assert FoldConstants().explain(program) == []
    FoldConstants()(program)
    assert [float(program(torch.zeros(3))[0]) for _ in range(2)] == [2.0, 4.0]


def test_freezing_folds_values_that_depend_on_trained_parameters() -> None:
    make = plus(call("t", fetch("weight")))
    program = FoldConstants(freeze=True)(program_of(make))
    assert nodes_of(program) == ["_folded_0", "add"]
    assert not program._folded_0.requires_grad
    with torch.no_grad():
        program_of(make).weight.zero_()
    assert torch.equal(program(torch.zeros(3, 2)), torch.ones(3, 2))


def test_the_constant_has_memory_of_its_own_and_the_strides_of_the_view() -> None:
    program = program_of(plus(call("t", fetch("table"))))
    FoldConstants()(program)
    assert program._folded_0.stride() == program.table.t().stride()
    program.table.zero_()
    assert torch.equal(program._folded_0, torch.arange(6.0).reshape(2, 3).t())


def test_an_expanded_constant_takes_no_more_memory_than_it_needs() -> None:
    program = FoldConstants(max_bytes=0)(program_of(plus(call("expand", fetch("table"), 500, 2, 3))))
    assert program._folded_0.untyped_storage().nbytes() == 24


def test_names_in_use_are_not_taken_and_lines_are_kept() -> None:
    program = program_of(plus(call("t", fetch("table"))))
    program._folded_0 = 3
    (t,) = program.graph.find_nodes(op="call_method")
    t.source = fx.provenance.SourceLocation.of("model.py", 3, "forward")
    t.meta["val"] = "recorded"
    (edit,) = make_edits(FoldConstants(), program)
    assert str(edit) == "t becomes _folded_1 (model.py:3)"
    (fetched,) = program.graph.find_nodes(op="get_attr")
    assert fetched.source is t.source and fetched.meta == {"val": "recorded"} and fetched.origins == ("t",)


def test_a_constant_used_by_another_constant_and_their_sum_is_removed_once() -> None:
    def make(graph: fx.Graph, x: fx.Node) -> fx.Node:
        doubled = graph.call_function(torch.mul, (graph.get_attr("table"), 2))
        return graph.call_function(torch.add, (doubled, graph.call_function(torch.exp, (doubled,))))

    program = FoldConstants()(program_of(plus(make)))
    assert nodes_of(program) == ["_folded_0", "add_1"]


def test_folding_again_changes_nothing() -> None:
    program = FoldConstants()(program_of(plus(call(torch.exp, fetch("table")))))
    revision = program.graph.revision
    FoldConstants()(program)
    assert program.graph.revision == revision
