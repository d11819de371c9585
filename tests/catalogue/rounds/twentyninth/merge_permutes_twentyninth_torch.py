"""A right pass of the twentyninth round."""

import torch
import torch.fx

from ...rows import sound


def _permutation(node):
    """(source, dimensions, none negative) of a permute, else None."""
    if (node.op, node.target) not in (("call_method", "permute"), ("call_function", torch.permute)) or node.kwargs:
        return None
    source, *dims = node.args
    if len(dims) == 1 and isinstance(dims[0], (tuple, list)):
        dims = list(dims[0])
    if not isinstance(source, torch.fx.Node) or not dims or any(type(d) is not int for d in dims):
        return None
    return source, [d % len(dims) for d in dims]


@sound(29)
def merge_permutes_twentyninth(gm: torch.fx.GraphModule):
    """Merge two permutations of dimensions in a row into one."""
    for second in list(gm.graph.nodes):
        outer = _permutation(second)
        if outer is None or outer[0] is not second.prev:
            continue
        first, then = outer
        inner = _permutation(first)
        if inner is None or sorted(inner[1]) != sorted(then):
            continue
        source, before = inner
        with gm.graph.inserting_before(second):
            both = gm.graph.call_method("permute", (source, *[before[d] for d in then]))
        second.replace_all_uses_with(both)
        gm.graph.erase_node(second)
        if not first.users:
            gm.graph.erase_node(first)
    gm.recompile()
    return gm
