"""A right pass of the fourteenth round."""

import torch

import fx
from fx import GraphModule

from ...rows import sound
from .shared import finish, follows


@sound(14)
def cast_before_transpose(graph_module: GraphModule) -> GraphModule:
    """Replace x.transpose(a, b).to(dtype) by x.to(dtype).transpose(a, b)."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_method" or node.target != "to" or node.kwargs or len(node.args) != 2:
            continue
        turned = node.args[0]
        if not isinstance(node.args[1], torch.dtype) or not isinstance(turned, fx.Node):
            continue
        if turned.op != "call_method" or turned.target != "transpose" or turned.kwargs or len(turned.args) != 3:
            continue
        if len(turned.users) != 1 or any(type(dim) is not int for dim in turned.args[1:]) or not follows(node, turned):
            continue
        with graph.inserting_before(node):
            cast = graph.call_method("to", (turned.args[0], node.args[1]))
            new = graph.call_method("transpose", (cast, *turned.args[1:]))
        node.replace_all_uses_with(new)
        graph.erase_node(node)
        graph.erase_node(turned)
    return finish(graph_module)
