"""A wrong pass of the twentyfourth round."""

import torch
import torch.fx

from ...rows import fault


def _dims(node):
    """The permutation that a node does, with dimensions that are not negative, or None."""
    if not isinstance(node, torch.fx.Node) or node.target not in ("permute", torch.permute) or node.kwargs:
        return None
    dims = node.args[1] if len(node.args) == 2 and isinstance(node.args[1], (tuple, list)) else node.args[1:]
    if not dims or any(type(d) is not int for d in dims):
        return None
    dims = [d % len(dims) for d in dims]
    return dims if sorted(dims) == list(range(len(dims))) else None


def _merge(gm, compose):
    graph = gm.graph
    for node in [*graph.nodes]:
        second = _dims(node)
        first = _dims(node.args[0]) if second else None
        if first is None or len(first) != len(second):
            continue
        inner = node.args[0]
        with graph.inserting_before(node):
            merged = graph.call_function(torch.permute, (inner.args[0], compose(first, second)))
        node.replace_all_uses_with(merged)
        graph.erase_node(node)
        if not inner.users:
            graph.erase_node(inner)
    gm.recompile()
    return gm


@fault(24, wrong="The two permutations are composed in the wrong order, which shows only where they do not commute.")
def merge_permutes_twentyfourth(gm: torch.fx.GraphModule):
    """Do two permutes by one."""
    return _merge(gm, lambda first, second: [second[d] for d in first])
