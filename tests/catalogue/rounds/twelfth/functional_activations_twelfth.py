"""A right pass of the twelfth round."""

import torch
import torch.nn.functional as F
from torch import nn

import fx

from ...rows import sound

CALLS = {
    nn.ReLU: lambda m: (F.relu, {"inplace": m.inplace}),
    nn.Sigmoid: lambda m: (torch.sigmoid, {}),
    nn.Tanh: lambda m: (torch.tanh, {}),
    nn.SiLU: lambda m: (F.silu, {"inplace": m.inplace}),
    nn.GELU: lambda m: (F.gelu, {"approximate": m.approximate}),
    nn.LeakyReLU: lambda m: (F.leaky_relu, {"negative_slope": m.negative_slope, "inplace": m.inplace}),
    nn.ELU: lambda m: (F.elu, {"alpha": m.alpha, "inplace": m.inplace}),
    nn.Softplus: lambda m: (F.softplus, {"beta": m.beta, "threshold": m.threshold}),
}


def _plain(m):
    hooked = m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks
    return not hooked and "forward" not in vars(m)


@sound(12)
def functional_activations_twelfth(module: fx.GraphModule) -> fx.GraphModule:
    """Call activations as functions rather than as modules."""
    graph = module.graph
    for node in list(graph.nodes):
        if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
            continue
        layer = module.get_submodule(node.target)
        if type(layer) not in CALLS or not _plain(layer):
            continue
        function, options = CALLS[type(layer)](layer)
        with graph.inserting_before(node):
            call = graph.call_function(function, node.args, options)
        node.replace_all_uses_with(call)
        graph.erase_node(node)
    module.recompile()
    return module
