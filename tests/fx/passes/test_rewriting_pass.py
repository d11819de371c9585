"""Passes as sequences of edits: counted, limited, and with the origin of every node kept."""

from __future__ import annotations

import copy
import operator
import pickle
from collections.abc import Iterator

import pytest
import torch
from small_passes import chain, counted

import fx
from fx.errors import PassError
from fx.passes import Edit, RewritingPass
from fx.pipelines.rewriting import make_edits


class NegateEachRelu(RewritingPass):
    """Replaces relu(x) by neg(x + 0)."""

    def rewrites(self, graph_module: fx.GraphModule) -> Iterator[Edit]:
        graph = graph_module.graph
        for node in graph.find_nodes(op="call_function", target=torch.relu):
            yield Edit(f"{node} becomes a negation", node.source)
            with graph.inserting_before(node):
                added = graph.call_function(operator.add, (node.args[0], 0))
                negated = graph.call_function(operator.neg, (added,))
            node.replace_all_uses_with(negated)
            graph.erase_node(node)


class EditsFirst(RewritingPass):
    """Announces its edits after making them."""

    def rewrites(self, graph_module: fx.GraphModule) -> Iterator[Edit]:
        for node in graph_module.graph.find_nodes(op="call_function", target=torch.relu):
            node.target = operator.neg
            yield Edit(f"{node} became a negation", node.source)


def test_each_edit_is_announced_before_it_is_made() -> None:
    program = fx.symbolic_trace(chain)
    remaining = []
    for edit in NegateEachRelu().rewrites(program):
        remaining.append((edit.description, counted(program, torch.relu)))
    assert remaining == [
        ("relu becomes a negation", 3),
        ("relu_1 becomes a negation", 2),
        ("relu_2 becomes a negation", 1),
    ]


def test_fuel_stops_after_so_many_edits_with_a_whole_program() -> None:
    for fuel in range(4):
        program = fx.symbolic_trace(chain)
        edits = make_edits(NegateEachRelu(), program, fuel)
        assert len(edits) == fuel
        assert counted(program, operator.neg) == fuel
        program.graph.lint()
        x = torch.tensor([2.0])
        expected = [2.0, 0.0, 2.0, -2.0][fuel]
        assert program(x).item() == expected


def test_program_is_recompiled_only_if_its_graph_changed() -> None:
    program = fx.symbolic_trace(lambda x: x + 1)
    code = program.code
    revision = program.graph.revision
    assert NegateEachRelu()(program) is program
    assert program.graph.revision == revision
    assert program.code is code


def test_new_nodes_have_the_origin_and_the_line_of_the_nodes_they_replace() -> None:
    program = fx.symbolic_trace(chain)
    line = program.graph.find_nodes(op="call_function")[0].source
    NegateEachRelu()(program)
    origins = {node.name: node.origins for node in program.graph.nodes}
    assert origins["neg"] == ("relu",)
    assert origins["add"] == ("relu",)  # computed for neg alone
    assert origins["neg_2"] == ("relu_2",)
    assert origins["x"] == ("x",)
    assert all(node.source == line for node in program.graph.nodes if node.op == "call_function")


def test_a_node_that_takes_over_another_ones_users_represents_both() -> None:
    class Drop(RewritingPass):
        def rewrites(self, graph_module: fx.GraphModule) -> Iterator[Edit]:
            node = graph_module.graph.find_nodes(op="call_function", target=torch.relu)[-1]
            yield Edit("drop it")
            node.replace_all_uses_with(node.args[0])
            graph_module.graph.erase_node(node)

    program = Drop()(fx.symbolic_trace(chain))
    assert program.graph.find_nodes(op="call_function")[-1].origins == ("relu_1", "relu_2")


def test_origins_survive_copies_pickles_and_transformers() -> None:
    program = NegateEachRelu()(fx.symbolic_trace(chain))
    program.graph.history = ("negate-each-relu",)
    expected = [(node.name, node.origins) for node in program.graph.nodes]
    for other in (
        copy.deepcopy(program),
        pickle.loads(pickle.dumps(program)),
        fx.Transformer(program).transform(),
    ):
        assert [(node.name, node.origins) for node in other.graph.nodes] == expected
        assert other.graph.history == ("negate-each-relu",)


def test_generated_code_lists_the_passes_and_keeps_its_line_numbers() -> None:
    program = fx.symbolic_trace(chain)
    program.graph.history = ("fuse-conv-bn", "hostile\nimport os")
    code = program.recompile()
    header, definition = code.src.strip().splitlines()[:2]
    assert header == "# after the passes fuse-conv-bn, hostile?import os"
    assert definition == "def forward(self, x : torch.Tensor) -> torch.Tensor:"
    lines = code.src.splitlines()
    number = next(number for number, line in enumerate(lines, 1) if "relu_1 =" in line and "relu(relu)" in line)
    nodes = list(program.graph.nodes)
    assert nodes[code.node_number(number)].name == "relu_1"  # type: ignore[index]
    assert program(torch.ones(1)).item() == 1


def test_an_announcement_that_is_no_edit_is_refused() -> None:
    class Talks(RewritingPass):
        def rewrites(self, graph_module: fx.GraphModule) -> Iterator[Edit]:
            yield "drop it"  # type: ignore[misc]

    with pytest.raises(PassError, match="a pass announced a str, which is not an Edit\n  value  'drop it'"):
        Talks()(fx.symbolic_trace(chain))


def test_a_pass_that_edits_before_it_says_so_is_refused() -> None:
    with pytest.raises(PassError, match="edited the graph before it announced the edit"):
        make_edits(EditsFirst(), fx.symbolic_trace(chain))
