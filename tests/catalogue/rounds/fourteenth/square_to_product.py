"""A right pass of the fourteenth round."""

import operator

import torch
from torch import nn

import fx
from fx import GraphModule

from ...rows import sound
from .shared import finish


def _plain(graph_module, node, kind):
    """The module that a node calls, if it is exactly of that kind and has no hooks."""
    if not isinstance(node, fx.Node) or node.op != "call_module":
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
def square_to_product(graph_module: GraphModule) -> GraphModule:
    """Replace y ** 2 by y * y for outputs y of Linear layers."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not operator.pow or node.kwargs:
            continue
        value, exponent = node.args
        if type(exponent) not in (int, float) or exponent != 2 or _float_linear(graph_module, value) is None:
            continue
        with graph.inserting_before(node):
            product = graph.call_function(operator.mul, (value, value))
        node.replace_all_uses_with(product)
        graph.erase_node(node)
    return finish(graph_module)
