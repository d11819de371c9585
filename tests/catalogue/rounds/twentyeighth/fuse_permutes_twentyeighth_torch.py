"""A wrong pass of the twentyeighth round."""

import torch
import torch.fx

from ...rows import fault


def axes(node):
    """The axes of a permutation, counted from the front, or None."""
    if not isinstance(node, torch.fx.Node) or not node.args:
        return None
    if not (
        node.op == "call_method"
        and node.target == "permute"
        or node.op == "call_function"
        and node.target is torch.permute
    ):
        return None
    dims = node.kwargs.get("dims", node.args[1] if len(node.args) == 2 else node.args[1:])
    if not isinstance(dims, (list, tuple)) or not dims or any(type(dim) is not int for dim in dims):
        return None
    dims = [dim + len(dims) if dim < 0 else dim for dim in dims]
    return dims if sorted(dims) == list(range(len(dims))) else None


def fuse(gm, compose):
    for node in list(gm.graph.nodes):
        outer = axes(node)
        inner = axes(node.args[0]) if outer is not None else None
        if inner is None or len(inner) != len(outer):
            continue
        first = node.args[0]
        node.op, node.target, node.kwargs = "call_function", torch.permute, {}
        node.args = (first.args[0], compose(inner, outer))
        if not first.users:
            gm.graph.erase_node(first)
    gm.recompile()
    return gm


@fault(28, wrong="Composes the permutations in the wrong order, which shows only where the two do not commute.")
def fuse_permutes_twentyeighth(gm: torch.fx.GraphModule):
    """Fuses two permutations of axes that follow each other into one."""
    return fuse(gm, lambda inner, outer: [outer[axis] for axis in inner])
