"""A right pass of the fourteenth round."""

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
def drop_zero_dropout_fourteenth(graph_module: GraphModule) -> GraphModule:
    """Remove Dropout layers whose probability is 0."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        module = _plain(graph_module, node, nn.Dropout)
        if module is None or module.p != 0 or not isinstance(node.args[0], fx.Node):
            continue
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)
    return finish(graph_module)
