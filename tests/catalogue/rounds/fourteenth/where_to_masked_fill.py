"""A wrong pass of the fourteenth round."""

import operator

import torch
from torch import nn

import fx
from fx import GraphModule

from ...rows import fault
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


_MASKS = (operator.gt, operator.lt, operator.ge, operator.le, operator.eq, operator.ne, torch.isnan, torch.logical_not)


def _rewrite(graph_module, careful):
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not torch.where or len(node.args) != 3 or node.kwargs:
            continue
        mask, constant, value = node.args
        if not isinstance(mask, fx.Node) or mask.op != "call_function" or mask.target not in _MASKS:
            continue
        if type(constant) is not float or not (abs(constant) < 60000 or constant in (float("inf"), -float("inf"))):
            continue
        if not isinstance(value, fx.Node):
            continue
        if careful and _float_linear(graph_module, value) is None:
            continue
        with graph.inserting_before(node):
            filled = graph.call_method("masked_fill", (value, mask, constant))
        node.replace_all_uses_with(filled)
        graph.erase_node(node)
    return finish(graph_module)


@fault(14, wrong="where promotes integers to the type of the constant, masked_fill keeps the type.")
def where_to_masked_fill(graph_module: GraphModule) -> GraphModule:
    """Replace where(mask, constant, x) by x.masked_fill(mask, constant)."""
    return _rewrite(graph_module, False)
