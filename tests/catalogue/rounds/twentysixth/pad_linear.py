"""A right pass of the twentysixth round."""

import torch
import torch.nn.functional as F
from torch import nn

import fx

from ...rows import sound
from .shared import _hooked


@sound(26)
def pad_linear(gm: fx.GraphModule):
    """Pad the outputs of linear layers to a multiple of eight, as matrix units want it, and cut the result."""
    for node in list(gm.graph.nodes):
        if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
            continue
        layer = gm.get_submodule(node.target)
        if type(layer) is not nn.Linear or _hooked(layer) or layer.out_features % 8 == 0 or layer.out_features < 1:
            continue
        rows = layer.out_features
        missing = -rows % 8
        with gm.graph.inserting_before(node):
            weight = gm.graph.get_attr(f"{node.target}.weight")
            weight = gm.graph.call_function(F.pad, (weight, (0, 0, 0, missing)))
            bias = None
            if layer.bias is not None:
                bias = gm.graph.get_attr(f"{node.target}.bias")
                bias = gm.graph.call_function(F.pad, (bias, (0, missing)))
            wide = gm.graph.call_function(F.linear, (node.args[0], weight, bias))
            cut = gm.graph.call_method("narrow", (wide, -1, 0, rows))
            result = gm.graph.call_method("clone", (cut,), {"memory_format": torch.contiguous_format})
        node.replace_all_uses_with(result)
        gm.graph.erase_node(node)
    gm.recompile()
    return gm
