"""A right pass of the twentythird round."""

import torch

import fx

from ...rows import sound


def _order(node):
    """The dimensions of a literal permute, counted from zero, or None."""
    if not isinstance(node, fx.Node) or node.op != "call_function" or node.target is not torch.permute:
        return None
    if len(node.args) != 2 or node.kwargs or not isinstance(node.args[1], (tuple, list)):
        return None
    dims = node.args[1]
    if not isinstance(node.args[0], fx.Node) or not all(type(dim) is int for dim in dims):
        return None
    order = [dim + len(dims) if dim < 0 else dim for dim in dims]
    return order if sorted(order) == list(range(len(dims))) else None


@sound(23)
def compose_permutes_twentythird(gm):
    """Compose two `torch.permute` in a row into one."""
    for outer in gm.graph.find_nodes(op="call_function", target=torch.permute):
        inner = outer.args[0] if outer.args else None
        first, second = _order(inner), _order(outer)
        if first is None or second is None or len(first) != len(second) or outer.prev is not inner:
            continue
        outer.args = (inner.args[0], tuple(first[dim] for dim in second))
        if not inner.users:
            gm.graph.erase_node(inner)
    gm.recompile()
    return gm
