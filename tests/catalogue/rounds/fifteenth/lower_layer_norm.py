"""A right pass of the fifteenth round."""

import torch.nn.functional as F
from torch import nn

from fx import GraphModule

from ...rows import sound
from .shared import parameter, parameters_are_plain, plain


@sound(15)
def lower_layer_norm(graph_module: GraphModule) -> GraphModule:
    """Lower ``nn.LayerNorm`` to ``F.layer_norm``."""
    for node in list(graph_module.graph.nodes):
        norm = plain(graph_module, node, nn.LayerNorm)
        if norm is None or not parameters_are_plain(norm, "weight", "bias"):
            continue
        with graph_module.graph.inserting_before(node):
            weight, bias = parameter(graph_module, node, "weight"), parameter(graph_module, node, "bias")
            settings = (tuple(norm.normalized_shape), weight, bias, norm.eps)
            new = graph_module.graph.call_function(F.layer_norm, (node.args[0], *settings))
        node.replace_all_uses_with(new)
        graph_module.graph.erase_node(node)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module
