"""A right pass of the twentyfifth round."""

import torch
import torch.fx

from ...rows import sound
from .shared import writes


def dims(node):
    """The two dims that ``node`` swaps, or None."""
    is_transpose = node.op == "call_method" and node.target == "transpose" or node.target is torch.transpose
    if not is_transpose or len(node.args) != 3 or node.kwargs or not all(type(dim) is int for dim in node.args[1:]):
        return None
    return frozenset(node.args[1:])


@sound(25)
def cancel_transposes_twentyfifth(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Remove two transpositions that undo each other."""
    if writes(gm):
        return gm
    for node in list(gm.graph.nodes):
        swapped = dims(node)
        # a result stays a tensor of its own
        if swapped is None or any(user.op == "output" for user in node.users):
            continue
        inner = node.args[0]
        if dims(inner) != swapped:
            continue
        node.replace_all_uses_with(inner.args[0])
        gm.graph.erase_node(node)
        if not inner.users:
            gm.graph.erase_node(inner)
    gm.recompile()
    return gm
