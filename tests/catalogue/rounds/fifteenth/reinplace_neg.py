"""A right pass of the fifteenth round."""

import operator

import torch

from fx import GraphModule, Node

from ...rows import sound


@sound(15)
def reinplace_neg(graph_module: GraphModule) -> GraphModule:
    """Let ``torch.neg`` of a sum that has no other use write into the memory of the sum."""
    for node in list(graph_module.graph.nodes):
        if node.op != "call_function" or node.target is not torch.neg or len(node.args) != 1 or node.kwargs:
            continue
        total = node.args[0]
        if not isinstance(total, Node) or total.op != "call_function" or total.target is not operator.add:
            continue
        if len(total.users) == 1:
            node.target = torch.neg_
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module
