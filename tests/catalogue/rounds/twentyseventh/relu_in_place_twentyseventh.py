"""A right pass of the twentyseventh round."""

import torch
import torch.nn.functional as F
from torch import nn

import fx

from ...rows import sound
from .shared import _hooked


@sound(27)
def relu_in_place_twentyseventh(gm):
    """A relu right after a linear layer writes over the layer's result, to save that memory in training."""
    modules = dict(gm.named_modules())

    def plain(node, kind):
        if node.op != "call_module" or type(modules[node.target]) is not kind or _hooked(modules[node.target]):
            return False
        return len(node.args) == 1 and not node.kwargs

    for node in list(gm.graph.nodes):
        function = node.op == "call_function" and node.target in (F.relu, torch.relu)
        if not (function and len(node.args) == 1) and not plain(node, nn.ReLU):
            continue
        source = node.args[0]
        if not isinstance(source, fx.Node) or not plain(source, nn.Linear) or len(source.users) != 1:
            continue
        with gm.graph.inserting_before(node):
            written = gm.graph.call_function(F.relu, (source,), {"inplace": True})
        node.replace_all_uses_with(written)
        gm.graph.erase_node(node)
    gm.recompile()
    return gm
