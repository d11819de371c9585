"""A right pass of the thirtysecond round."""

import operator

import torch

import fx

from ...rows import sound
from .shared import calls, replace


# Only in programs of pure functions alone, without a method, module or in-place operation that might write.
# Values that are returned stay, so that no two results become one tensor. Literals are compared with their
# types.
@sound(32)
def merge_repeated_pointwise(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Compute repeated pointwise expressions once."""
    fresh = (
        *(operator.add, operator.sub, operator.mul, operator.truediv, operator.neg),
        *(torch.sin, torch.cos, torch.tanh, torch.sigmoid, torch.exp, torch.add, torch.sub, torch.mul, torch.matmul),
    )

    def is_pure(node):
        if node.op in ("placeholder", "get_attr", "output"):
            return True
        return calls(node, fresh) and node.kwargs.get("out") is None

    graph = graph_module.graph
    if not all(is_pure(node) for node in graph.nodes):
        return graph_module
    first_calls = {}
    for node in list(graph.nodes):
        if not calls(node, fresh) or any(user.op == "output" for user in node.users):
            continue
        key = (node.target, repr(node.args), repr(sorted(node.kwargs.items())))
        first = first_calls.setdefault(key, node)
        if first is not node:
            replace(node, first)
    graph_module.recompile()
    return graph_module
