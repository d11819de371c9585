"""A wrong pass of the thirtysecond round."""

import torch

import fx

from ...rows import fault
from .shared import calls, replace


@fault(
    32,
    wrong="The order of composition: dimension i of the result is dimension first[second[i]], not second[first[i]]. Shows for two permutations that do not commute, (1, 0, 2) and then (0, 2, 1); a permutation and its inverse are right.",
)
def merge_permutes_thirtysecond(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Merge a permute of a permute into one."""

    def order(node):
        if not calls(node, (torch.permute,), ("permute",)) or len(node.args) < 2 or node.kwargs:
            return None
        dims = node.args[1:]
        if len(dims) == 1 and isinstance(dims[0], (tuple, list)):
            dims = tuple(dims[0])
        if not all(type(dim) is int for dim in dims):
            return None
        return tuple(dim % len(dims) for dim in dims)

    for node in list(graph_module.graph.nodes):
        second = order(node)
        first = order(node.args[0]) if second else None
        if not first or len(first) != len(second) or len(node.args[0].users) != 1:
            continue
        inner = node.args[0]
        with graph_module.graph.inserting_before(node):
            merged = graph_module.graph.call_method("permute", (inner.args[0], *(second[dim] for dim in first)))
        replace(node, merged)
        graph_module.graph.erase_node(inner)
    graph_module.recompile()
    return graph_module
