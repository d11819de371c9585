"""A right pass of the twentyfourth round."""

import torch

import fx

from ...rows import sound


def _dims(node):
    """The permutation, with dimensions that are not negative, or None."""
    if not isinstance(node, fx.Node) or node.op != "call_function" or node.target is not torch.permute or node.kwargs:
        return None
    if len(node.args) != 2 or not isinstance(node.args[0], fx.Node) or not isinstance(node.args[1], (tuple, list)):
        return None
    dims, rank = node.args[1], len(node.args[1])
    if any(type(d) is not int or not -rank <= d < rank for d in dims):
        return None
    dims = [d % rank for d in dims]
    return dims if sorted(dims) == list(range(rank)) else None


@sound(24)
def compose_permutes_twentyfourth(gm):
    """Replace the second of two neighbouring permutes by both at once."""
    graph = gm.graph
    for node in [*graph.nodes]:
        second = _dims(node)
        first = _dims(node.args[0]) if second is not None else None
        if first is None or len(first) != len(second):
            continue
        inner = node.args[0]
        if inner.next is not node or len(inner.users) != 1:
            continue
        node.args = (inner.args[0], [first[d] for d in second])
        graph.erase_node(inner)
    gm.recompile()
    return gm
