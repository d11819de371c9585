"""A wrong pass of the thirtyfirst round."""

import torch
import torch.fx
import torch.nn as nn
import torch.nn.functional as F

from ...rows import fault


def _in_place(gm, producers):
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or node.target is not F.relu or len(node.args) != 1:
            continue
        source = node.args[0]
        if source.op != "call_module" or len(source.users) > 1:
            continue
        layer = gm.get_submodule(source.target)
        if type(layer) not in producers or layer._forward_hooks or layer._backward_hooks or layer._backward_pre_hooks:
            continue
        node.kwargs = {"inplace": True}
    gm.graph.lint()
    gm.recompile()
    return gm


@fault(
    31,
    wrong="F.relu works in place on the result of a layer that nobody else reads; nn.Flatten is among the layers, "
    "whose result is a view: the write goes into the tensor that was flattened, also if the program reads it "
    "or the caller passed it.",
)
def relu_in_place_thirtyfirst(gm: torch.fx.GraphModule):
    """Save memory: let relu write over the result of the layer before it."""
    return _in_place(gm, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Flatten))
