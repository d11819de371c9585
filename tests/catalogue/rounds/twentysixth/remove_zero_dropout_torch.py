"""A right pass of the twentysixth round."""

import torch
import torch.fx
from torch import nn

from ...rows import sound
from .shared import _hooked


@sound(26)
def remove_zero_dropout(gm: torch.fx.GraphModule):
    """Remove dropout layers with p=0."""
    for node in list(gm.graph.nodes):
        if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
            continue
        layer = gm.get_submodule(node.target)
        if type(layer) is nn.Dropout and layer.p == 0 and not _hooked(layer):
            node.replace_all_uses_with(node.args[0])
            gm.graph.erase_node(node)
    gm.recompile()
    return gm
