"""A right pass of the twentyfifth round."""

import torch
import torch.fx

from ...rows import sound
from .shared import writes


@sound(25)
def share_sizes_twentyfifth(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Ask each tensor for its shape once."""
    if writes(gm):
        return gm
    first_of_key = {}
    for node in list(gm.graph.nodes):
        is_size = node.op == "call_method" and node.target == "size" and len(node.args) <= 2
        is_shape = node.op == "call_function" and node.target is getattr and node.args[1:] == ("shape",)
        if not (is_size or is_shape) or node.kwargs:
            continue
        if not all(type(argument) in (int, str) for argument in node.args[1:]):
            continue
        first = first_of_key.setdefault((node.target, *node.args), node)
        if first is not node:
            node.replace_all_uses_with(first)
            gm.graph.erase_node(node)
    gm.recompile()
    return gm
