"""A right pass of the fourteenth round."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import GraphModule, Node

from ...rows import sound
from .shared import finish


def _plain(graph_module, node, kind):
    """The module that a node calls, if it is exactly of that kind and has no hooks."""
    if not isinstance(node, Node) or node.op != "call_module":
        return None
    module = graph_module.get_submodule(node.target)
    hooked = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    if type(module) is not kind or hooked or len(node.args) != 1 or node.kwargs:
        return None
    return module


def _float_linear(graph_module, node):
    """The Linear that a node calls, whose result is float32 or float64."""
    module = _plain(graph_module, node, nn.Linear)
    return module if module is not None and module.weight.dtype in (torch.float32, torch.float64) else None


@sound(14)
def relu_out_of_place(graph_module: GraphModule) -> GraphModule:
    """Replace ReLU(inplace=True) by F.relu where it writes to a Linear output that is its own."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        module = _plain(graph_module, node, nn.ReLU)
        if module is None or not module.inplace:
            continue
        value = node.args[0]
        if _float_linear(graph_module, value) is None or len(value.users) != 1:
            continue
        with graph.inserting_before(node):
            new = graph.call_function(F.relu, (value,))
        node.replace_all_uses_with(new)
        graph.erase_node(node)
    return finish(graph_module)
