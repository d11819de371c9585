"""Passes for tests of pipelines: one announces its edits, the others do not."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

import fx
from fx.passes import Edit, RewritingPass, exact


@dataclass(frozen=True)
class NegateEachRelu(RewritingPass):
    """Replaces each relu by a negation; raises before edit number ``stumble``."""

    name: ClassVar[str] = "negate-each-relu"
    contract: ClassVar[Any] = exact
    stumble: int = -1

    def rewrites(self, graph_module: fx.GraphModule) -> Iterator[Edit]:
        graph = graph_module.graph
        if self.stumble == 0:
            raise IndexError("list index out of range")
        for number, node in enumerate(graph.find_nodes(op="call_function", target=torch.relu), 1):
            yield Edit(f"{node} becomes a negation", node.source)
            if number == self.stumble:
                raise IndexError("list index out of range")
            with graph.inserting_before(node):
                negated = graph.call_function(operator.neg, node.args)
            node.replace_all_uses_with(negated)
            graph.erase_node(node)


def double_the_result(graph_module: fx.GraphModule) -> None:
    """Multiplies the result of a program by two, without recording an origin."""
    graph = graph_module.graph
    output = graph.output_node()
    with graph.inserting_before(output):
        output.args = (graph.call_function(operator.mul, (output.args[0], 2)),)
    graph_module.recompile()


def change_nothing(graph_module: fx.GraphModule) -> fx.GraphModule:
    return graph_module


def chain(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(torch.relu(torch.relu(x)))


def captured() -> fx.GraphModule:
    return fx.symbolic_trace(chain)


def counted(program: fx.GraphModule, target: Any) -> int:
    """Count the calls of a function."""
    return len(program.graph.find_nodes(op="call_function", target=target))
