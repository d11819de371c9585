"""A right pass of the fifteenth round."""

import torch
import torch.fx
from torch.fx import Node

from ...rows import sound


def order_of(node):
    """The full order of dimensions that the node permutes to, counted from 0, or None."""
    if not isinstance(node, Node) or node.op != "call_method" or node.target != "permute" or node.kwargs:
        return None
    dims = node.args[1:]
    if not dims or not all(type(dim) is int and dim >= 0 for dim in dims) or sorted(dims) != list(range(len(dims))):
        return None
    return dims


@sound(15)
def compose_permutes_fifteenth(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Write two ``permute`` in a row as one."""
    for node in list(graph_module.graph.nodes):
        outer = order_of(node)
        first = node.args[0] if outer else None
        inner = order_of(first)
        if inner is None or len(inner) != len(outer) or len(first.users) != 1:
            continue
        first.args = (first.args[0], *(inner[dim] for dim in outer))
        node.replace_all_uses_with(first)
        graph_module.graph.erase_node(node)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module
