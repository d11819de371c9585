"""A right pass of the fifteenth round."""

import torch
import torch.fx
import torch.nn.functional as F
from torch import nn

from ...rows import sound
from .shared import plain

SETTINGS = {
    nn.LeakyReLU: (F.leaky_relu, ("negative_slope", "inplace")),
    nn.ELU: (F.elu, ("alpha", "inplace")),
    nn.Hardtanh: (F.hardtanh, ("min_val", "max_val", "inplace")),
    nn.ReLU6: (F.relu6, ("inplace",)),
    nn.SiLU: (F.silu, ("inplace",)),
}


@sound(15)
def lower_activations(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Lower activation modules to the functions that they call."""
    for node in list(graph_module.graph.nodes):
        for kind, (function, names) in SETTINGS.items():
            module = plain(graph_module, node, kind)
            if module is None:
                continue
            settings = tuple(getattr(module, name) for name in names)
            with graph_module.graph.inserting_before(node):
                new = graph_module.graph.call_function(function, (node.args[0], *settings))
            node.replace_all_uses_with(new)
            graph_module.graph.erase_node(node)
            break
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module
