"""A wrong pass of the fifteenth round."""

import torch
import torch.fx
import torch.nn.functional as F
from torch import nn
from torch.fx import Node

from ...rows import fault
from .shared import parameter, parameters_are_plain, plain


def zero_pad(node):
    """Return the number of zeros that the node adds to both ends of the last axis, or None."""
    if not isinstance(node, Node) or node.op != "call_function" or node.target is not F.pad:
        return None
    if len(node.args) != 2 or len(node.users) != 1 or not isinstance(node.args[1], (list, tuple)):
        return None
    if node.kwargs.get("mode", "constant") != "constant" or node.kwargs.get("value") is not None:
        return None
    sizes = tuple(node.args[1])
    if len(sizes) != 2 or not all(type(size) is int and size >= 0 for size in sizes) or sizes[0] != sizes[1]:
        return None
    return sizes[0]


@fault(15, wrong="The padding_mode of the convolution is not looked at; the folded one pads with zeros only.")
def fold_pad_into_conv1d(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Fold a zero ``F.pad`` of both ends of the time axis into the padding of the ``Conv1d`` after it."""
    for node in list(graph_module.graph.nodes):
        conv = plain(graph_module, node, nn.Conv1d)
        if conv is None or not parameters_are_plain(conv, "weight", "bias") or isinstance(conv.padding, str):
            continue
        pad = node.args[0]
        size = zero_pad(pad)
        if size is None or pad.next is not node:
            continue
        with graph_module.graph.inserting_before(node):
            weight, bias = parameter(graph_module, node, "weight"), parameter(graph_module, node, "bias")
            settings = (conv.stride, (conv.padding[0] + size,), conv.dilation, conv.groups)
            new = graph_module.graph.call_function(F.conv1d, (pad.args[0], weight, bias, *settings))
        node.replace_all_uses_with(new)
        graph_module.graph.erase_node(node)
        graph_module.graph.erase_node(pad)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module
