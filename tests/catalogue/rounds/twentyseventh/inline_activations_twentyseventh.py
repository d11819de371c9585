"""A wrong pass of the twentyseventh round."""

import torch
import torch.nn.functional as F
from torch import nn

from ...rows import fault


def _call_of(layer):
    """The function and its keywords that compute what the layer does."""
    kind = type(layer)
    if kind in (nn.ReLU, nn.SiLU, nn.ReLU6):
        function = {nn.ReLU: F.relu, nn.SiLU: F.silu, nn.ReLU6: F.relu6}[kind]
        return function, {"inplace": layer.inplace}
    if kind is nn.LeakyReLU:
        return F.leaky_relu, {"negative_slope": layer.negative_slope, "inplace": layer.inplace}
    if kind is nn.GELU:
        return F.gelu, {"approximate": layer.approximate}
    if kind in (nn.Tanh, nn.Sigmoid):
        return (torch.tanh if kind is nn.Tanh else torch.sigmoid), {}
    return None


def _inline(gm, refuse):
    modules = dict(gm.named_modules())
    for node in list(gm.graph.nodes):
        if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
            continue
        layer = modules[node.target]
        call = _call_of(layer)
        if call is None or "forward" in vars(layer) or refuse(layer):
            continue
        with gm.graph.inserting_before(node):
            inlined = gm.graph.call_function(call[0], node.args, call[1])
        node.replace_all_uses_with(inlined)
        gm.graph.erase_node(node)
    gm.recompile()
    return gm


@fault(27, wrong="A layer with a forward hook loses it: the function does not run hooks.")
def inline_activations_twentyseventh(gm):
    """Calls of activation layers become calls of the functions, so that later patterns see one form of each."""
    return _inline(gm, lambda layer: False)
