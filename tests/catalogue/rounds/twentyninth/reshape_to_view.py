"""A right pass of the twentyninth round."""

import operator

from ...rows import sound

ASKS = {getattr, operator.getitem, operator.mul, operator.floordiv, operator.add, operator.sub}


def _asks_size(node):
    """Return whether the node reads sizes, or computes with them."""
    return (
        node.op == "call_method"
        and node.target in ("size", "dim")
        or node.op == "call_function"
        and node.target in ASKS
    )


@sound(29)
def reshape_to_view(gm):
    """Turn reshape into view where the tensor was made contiguous before, for a compiler that takes reshape for a copy."""
    for node in list(gm.graph.nodes):
        if node.op != "call_method" or node.target != "reshape" or node.kwargs:
            continue
        source, between = node.args[0], node.prev
        if getattr(source, "op", None) != "call_method" or source.target != "contiguous":
            continue
        if len(source.args) != 1 or source.kwargs:
            continue
        while between is not source and _asks_size(between):
            between = between.prev
        if between is source:
            node.target = "view"
    gm.recompile()
    return gm
