"""A right pass of the sixteenth round."""

import torch
import torch.fx
from torch.fx import Node

from ...rows import sound
from .shared import finish


def _dims(node: Node) -> tuple[int, ...] | None:
    if node.op != "call_function" or node.target is not torch.permute or node.kwargs or len(node.args) != 2:
        return None
    dims = node.args[1]
    if not isinstance(dims, (tuple, list)) or not dims or not all(type(dim) is int for dim in dims):
        return None
    rank = len(dims)
    if not all(-rank <= dim < rank for dim in dims) or len({dim % rank for dim in dims}) != rank:
        return None
    return tuple(dim % rank for dim in dims)


def _rewrite(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    graph = graph_module.graph
    for node in list(graph.nodes):
        outer = _dims(node)
        first = node.args[0] if outer else None
        if not isinstance(first, Node) or node.prev is not first or len(first.users) != 1:
            continue
        inner = _dims(first)
        if inner is None or len(inner) != len(outer):
            continue
        node.args = (first.args[0], tuple(inner[dim] for dim in outer))
        graph.erase_node(first)
    return finish(graph_module)


@sound(16)
def compose_permutes_sixteenth(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Composes two permutations of dims that follow each other."""
    return _rewrite(graph_module)
