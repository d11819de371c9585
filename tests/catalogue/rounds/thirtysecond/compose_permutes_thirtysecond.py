"""A right pass of the thirtysecond round."""

import torch

import fx

from ...rows import sound
from .shared import calls, follows_at_once, replace


# Composes in the right order, with negative dimensions and both spellings. The result is a view of the same
# storage: writes before, after or through it remain. A first permute with other users is kept.
@sound(32)
def compose_permutes_thirtysecond(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Merge a permute of a permute into one."""

    def order(node):
        if not calls(node, (torch.permute,), ("permute",)) or len(node.args) < 2 or node.kwargs:
            return None
        dims = node.args[1:]
        if len(dims) == 1 and isinstance(dims[0], (tuple, list)):
            dims = tuple(dims[0])
        rank = len(dims)
        if not all(type(dim) is int and -rank <= dim < rank for dim in dims):
            return None
        dims = tuple(dim % rank for dim in dims)
        return dims if sorted(dims) == list(range(rank)) else None

    for node in list(graph_module.graph.nodes):
        second = order(node)
        first = order(node.args[0]) if second else None
        if not first or len(first) != len(second) or not follows_at_once(node, node.args[0]):
            continue
        inner = node.args[0]
        with graph_module.graph.inserting_before(node):
            merged = graph_module.graph.call_method("permute", (inner.args[0], *(first[dim] for dim in second)))
        replace(node, merged)
        if not inner.users:
            graph_module.graph.erase_node(inner)
    graph_module.recompile()
    return graph_module
