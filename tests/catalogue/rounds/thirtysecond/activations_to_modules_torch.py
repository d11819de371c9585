"""A wrong pass of the thirtysecond round."""

import torch.fx
import torch.nn.functional as F
from torch import nn

from ...rows import fault
from .shared import argument, free_name, replace


@fault(
    32,
    wrong="The argument inplace of the functions. Shows in a residual block that computes F.relu(x, inplace=True) and then adds x, which by then is rectified.",
)
def activations_to_modules(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Make modules of functional activations, so that a quantizer can observe them."""
    makers = {
        F.relu: lambda node: nn.ReLU(),
        F.relu6: lambda node: nn.ReLU6(),
        F.silu: lambda node: nn.SiLU(),
        F.leaky_relu: lambda node: nn.LeakyReLU(argument(node, 1, "negative_slope", 0.01)),
        F.elu: lambda node: nn.ELU(argument(node, 1, "alpha", 1.0)),
        F.hardtanh: lambda node: nn.Hardtanh(argument(node, 1, "min_val", -1.0), argument(node, 2, "max_val", 1.0)),
    }
    for node in list(graph_module.graph.nodes):
        if node.op != "call_function" or node.target not in makers or not node.args:
            continue
        if any(isinstance(value, torch.fx.Node) for value in (*node.args[1:], *node.kwargs.values())):
            continue
        name = free_name(graph_module, node.target.__name__)
        graph_module.add_module(name, makers[node.target](node))
        with graph_module.graph.inserting_before(node):
            call = graph_module.graph.call_module(name, (node.args[0],))
        replace(node, call)
    graph_module.recompile()
    return graph_module
