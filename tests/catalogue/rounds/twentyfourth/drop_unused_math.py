"""A right pass of the twentyfourth round."""

import torch

import fx

from ...rows import sound

PURE = (torch.sigmoid, torch.tanh, torch.exp, torch.sin, torch.cos, torch.atan)


@sound(24)
def drop_unused_math(gm):
    """Erase from the end, so that chains go as a whole."""
    for node in reversed([*gm.graph.nodes]):
        if node.op != "call_function" or node.target not in PURE or node.users:
            continue
        if len(node.args) == 1 and isinstance(node.args[0], fx.Node) and not node.kwargs:
            gm.graph.erase_node(node)
    gm.recompile()
    return gm
