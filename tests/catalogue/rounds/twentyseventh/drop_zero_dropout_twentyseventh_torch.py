"""A right pass of the twentyseventh round."""

import torch
import torch.fx
from torch import nn

from ...rows import sound


@sound(27)
def drop_zero_dropout_twentyseventh(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Dropout layers with probability zero, which configurations leave behind, are taken out, in training too."""
    for node in list(gm.graph.nodes):
        if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
            continue
        layer = gm.get_submodule(node.target)
        hooks = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks
        if type(layer) is not nn.Dropout or hooks or layer.inplace or layer.p != 0:
            continue
        node.replace_all_uses_with(node.args[0])
        gm.graph.erase_node(node)
    gm.graph.lint()
    gm.recompile()
    return gm
