"""A right pass of the twentyninth round."""

import torch

import fx

from ...rows import sound


def _clamp(node):
    """(source, low, high) of a clamp between two numbers, else None."""
    if (node.op, node.target) not in (("call_method", "clamp"), ("call_function", torch.clamp)):
        return None
    arguments = dict(zip(("input", "min", "max"), node.args))
    if set(arguments) & set(node.kwargs) or set(node.kwargs) - {"min", "max"}:
        return None
    arguments.update(node.kwargs)
    values = (arguments.get("input"), arguments.get("min"), arguments.get("max"))
    if not isinstance(values[0], fx.Node) or type(values[1]) is not float or type(values[2]) is not float:
        return None  # whole numbers are cast to the tensor's type, and may wrap around there
    return values if values[1] <= values[2] else None


@sound(29)
def merge_clamps_twentyninth(gm):
    """Merge two clamps in a row into one."""
    for outer in list(gm.graph.nodes):
        second = _clamp(outer)
        if second is None or second[0] is not outer.prev or list(second[0].users) != [outer]:
            continue
        inner, low, high = second
        first = _clamp(inner)
        if first is None:
            continue
        low, high = max(first[1], low), min(first[2], high)
        if not low <= high:
            continue
        with gm.graph.inserting_before(outer):
            both = gm.graph.call_function(torch.clamp, (first[0],), {"min": low, "max": high})
        outer.replace_all_uses_with(both)
        gm.graph.erase_node(outer)
        gm.graph.erase_node(inner)
    gm.recompile()
    return gm
