"""A right pass of the fourteenth round."""

import operator

from torch import nn
from torch.fx import GraphModule, Node

from ...rows import sound
from .shared import finish, follows


def _plain(graph_module, node, kind):
    """The module that a node calls, if it is exactly of that kind and has no hooks."""
    if not isinstance(node, Node) or node.op != "call_module":
        return None
    module = graph_module.get_submodule(node.target)
    hooked = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    if type(module) is not kind or hooked or len(node.args) != 1 or node.kwargs:
        return None
    return module


@sound(14)
def shape_to_size(graph_module: GraphModule) -> GraphModule:
    """Replace x.shape[i] by x.size(i) for numbers i, where x is an input of a Linear or Embedding."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not operator.getitem or type(node.args[1]) is not int:
            continue
        shape = node.args[0]
        if not isinstance(shape, Node) or shape.op != "call_function" or shape.target is not getattr:
            continue
        if len(shape.args) != 2 or shape.args[1] != "shape" or len(shape.users) != 1 or not follows(node, shape):
            continue
        value = shape.args[0]
        if not isinstance(value, Node):
            continue
        layers = [_plain(graph_module, user, kind) for user in value.users for kind in (nn.Linear, nn.Embedding)]
        if all(layer is None for layer in layers):
            continue
        with graph.inserting_before(node):
            size = graph.call_method("size", (value, node.args[1]))
        node.replace_all_uses_with(size)
        graph.erase_node(node)
        graph.erase_node(shape)
    return finish(graph_module)
