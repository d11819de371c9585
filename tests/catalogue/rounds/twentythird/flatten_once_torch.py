"""A right pass of the twentythird round."""

import torch
import torch.fx

from ...rows import sound


def _is_flatten(node):
    if not isinstance(node, torch.fx.Node) or node.op != "call_function" or node.target is not torch.flatten:
        return False
    return not node.kwargs and len(node.args) == 2 and type(node.args[1]) is int and node.args[1] == 1


@sound(23)
def flatten_once(gm: torch.fx.GraphModule):
    """Drop a second `torch.flatten(x, 1)` directly after a first."""
    for second in list(gm.graph.nodes):
        first = second.args[0] if second.args else None
        if not _is_flatten(second) or not _is_flatten(first) or second.prev is not first:
            continue
        second.replace_all_uses_with(first)
        gm.graph.erase_node(second)
    gm.graph.lint()
    gm.recompile()
    return gm
