"""A wrong pass of the thirtysecond round."""

import operator

import torch
import torch.fx

from ...rows import fault
from .shared import calls, has_writes, replace


@fault(
    32,
    wrong="2, 2.0 and True are equal keys of a dict, but they promote differently. Shows in a model that computes both ids * 2 and ids * 2.0 for a tensor of integers (x + 1 and x + True for booleans).",
)
def eliminate_repeated_arithmetic(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Compute repeated arithmetic expressions once."""
    pure = (operator.add, operator.sub, operator.mul, torch.add, torch.sub, torch.mul, torch.sin, torch.cos, torch.tanh)
    if has_writes(graph_module):
        return graph_module
    first_calls = {}
    for node in list(graph_module.graph.nodes):
        if not calls(node, pure):
            continue
        key = (node.target, tuple(node.args), tuple(sorted(node.kwargs.items())))
        try:
            first = first_calls.setdefault(key, node)
        except TypeError:
            continue
        if first is not node:
            replace(node, first)
    graph_module.recompile()
    return graph_module
