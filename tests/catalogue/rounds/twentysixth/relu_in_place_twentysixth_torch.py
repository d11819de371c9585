"""A right pass of the twentysixth round."""

import torch
import torch.fx
from torch import nn

from ...rows import sound
from .shared import _hooked


@sound(26)
def relu_in_place_twentysixth(gm: torch.fx.GraphModule):
    """ReLU layers right behind a linear layer write their result over what they read, in training too."""
    for node in gm.graph.nodes:
        if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
            continue
        before = node.args[0]
        if before.op != "call_module" or len(before.users) != 1:
            continue
        relu, layer = gm.get_submodule(node.target), gm.get_submodule(before.target)
        if type(relu) is not nn.ReLU or relu.inplace or type(layer) is not nn.Linear or _hooked(relu) or _hooked(layer):
            continue
        name = node.target.replace(".", "_") + "_in_place"
        while hasattr(gm, name):
            name += "_"
        gm.add_submodule(name, nn.ReLU(inplace=True).train(relu.training))
        node.target = name
    gm.recompile()
    return gm
