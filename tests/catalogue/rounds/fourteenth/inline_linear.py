"""A right pass of the fourteenth round."""

import torch.nn.functional as F
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


@sound(14)
def inline_linear(graph_module: GraphModule) -> GraphModule:
    """Replace calls of Linear modules by F.linear on their parameters."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        module = _plain(graph_module, node, nn.Linear)
        if module is None or type(module._parameters.get("weight")) is not nn.Parameter:
            continue
        if "forward" in vars(module) or type(module._parameters.get("bias")) not in (nn.Parameter, type(None)):
            continue
        with graph.inserting_before(node):
            weight = graph.get_attr(f"{node.target}.weight")
            bias = None if module.bias is None else graph.get_attr(f"{node.target}.bias")
            call = graph.call_function(F.linear, (node.args[0], weight, bias))
        node.replace_all_uses_with(call)
        graph.erase_node(node)
    return finish(graph_module)
