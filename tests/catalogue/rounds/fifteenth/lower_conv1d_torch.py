"""A right pass of the fifteenth round."""

import torch
import torch.fx
import torch.nn.functional as F
from torch import nn

from ...rows import sound
from .shared import parameter, parameters_are_plain, plain


@sound(15)
def lower_conv1d(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Lower ``nn.Conv1d`` that pads with zeros to ``F.conv1d``."""
    for node in list(graph_module.graph.nodes):
        conv = plain(graph_module, node, nn.Conv1d)
        if conv is None or conv.padding_mode != "zeros" or not parameters_are_plain(conv, "weight", "bias"):
            continue
        with graph_module.graph.inserting_before(node):
            weight, bias = parameter(graph_module, node, "weight"), parameter(graph_module, node, "bias")
            settings = (conv.stride, conv.padding, conv.dilation, conv.groups)
            new = graph_module.graph.call_function(F.conv1d, (node.args[0], weight, bias, *settings))
        node.replace_all_uses_with(new)
        graph_module.graph.erase_node(node)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module
