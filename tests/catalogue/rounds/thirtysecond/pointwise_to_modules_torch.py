"""A right pass of the thirtysecond round."""

import torch.fx
import torch.nn.functional as F
from torch import nn

from ...rows import sound
from .shared import free_name, replace


# The modules get the arguments of the functions, inplace as well. Calls with traced options are left alone.
@sound(32)
def pointwise_to_modules(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Make modules of functional activations, so that a quantizer can observe them."""

    def options_of(node, names):
        """The options by name, or None if one is unknown, traced, or of an unusual type."""
        if len(node.args) > 1 + len(names) or not set(node.kwargs) <= set(names):
            return None
        options = dict(zip(names, node.args[1:], strict=False)) | dict(node.kwargs)
        if not all(type(value) is (bool if name == "inplace" else float) for name, value in options.items()):
            return None
        return options

    kinds = {
        F.relu: (nn.ReLU, ("inplace",)),
        F.silu: (nn.SiLU, ("inplace",)),
        F.leaky_relu: (nn.LeakyReLU, ("negative_slope", "inplace")),
        F.elu: (nn.ELU, ("alpha", "inplace")),
    }
    for node in list(graph_module.graph.nodes):
        if node.op != "call_function" or node.target not in kinds or not node.args:
            continue
        kind, names = kinds[node.target]
        options = options_of(node, names)
        if options is None:
            continue
        name = free_name(graph_module, node.target.__name__)
        module = kind(**options)
        module.train(graph_module.training)
        graph_module.add_module(name, module)
        with graph_module.graph.inserting_before(node):
            call = graph_module.graph.call_module(name, (node.args[0],))
        replace(node, call)
    graph_module.recompile()
    return graph_module
