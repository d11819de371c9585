"""A right pass of the twentyeighth round."""

import torch
import torch.fx

from ...rows import sound
from .shared import writes


@sound(28)
def share_sizes_twentyeighth(gm: torch.fx.GraphModule):
    """Asks for each size of a tensor once."""
    if writes(gm):
        return gm
    first_of_key = {}
    for node in list(gm.graph.nodes):
        if node.kwargs or not node.args or not isinstance(node.args[0], torch.fx.Node):
            continue
        if node.op == "call_method" and node.target in ("size", "dim", "numel"):
            key = node.target, *node.args
        elif node.op == "call_function" and node.target is getattr and node.args[1:] in (("shape",), ("ndim",)):
            key = node.args[1], node.args[0]
        else:
            continue
        if any(type(arg) is not int for arg in node.args[1:] if node.op == "call_method"):
            continue
        first = first_of_key.setdefault(key, node)
        if first is not node:
            node.replace_all_uses_with(first)
            gm.graph.erase_node(node)
    gm.recompile()
    return gm
