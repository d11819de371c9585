"""A wrong pass of the twentythird round."""

import torch

import fx

from ...rows import fault


def _bounds(node):
    """The two numbers of a clamp, or None."""
    if not isinstance(node, fx.Node) or node.op != "call_function" or node.target is not torch.clamp:
        return None
    named = dict(zip(("input", "min", "max"), node.args, strict=False)) | dict(node.kwargs)
    low, high = named.get("min"), named.get("max")
    if set(named) != {"input", "min", "max"} or not node.args or type(low) not in (int, float):
        return None
    return (low, high) if type(low) is type(high) and low <= high else None


def _rewrite(gm, refuses):
    for outer in gm.graph.find_nodes(op="call_function", target=torch.clamp):
        inner = outer.args[0] if outer.args else None
        first, second = _bounds(inner), _bounds(outer)
        if first is None or second is None or type(first[0]) is not type(second[0]):
            continue
        if list(inner.users) != [outer] or outer.prev is not inner:
            continue
        low, high = max(first[0], second[0]), min(first[1], second[1])
        if refuses(low, high):
            continue
        outer.args, outer.kwargs = (inner.args[0], low, high), {}
        gm.graph.erase_node(inner)
    gm.recompile()
    return gm


@fault(
    23,
    wrong="Where the first range lies below the second, the merged minimum is above the merged maximum, and the result is the wrong one.",
)
def merge_clamps_twentythird(gm):
    """Merge two clamps in a row into one with the narrower bounds."""
    return _rewrite(gm, lambda low, high: False)
