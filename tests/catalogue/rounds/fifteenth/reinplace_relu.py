"""A wrong pass of the fifteenth round."""

import operator

import torch

from fx import GraphModule, Node

from ...rows import fault


@fault(15, wrong="Only later uses of the sum itself are counted, not those of views that were taken of it before.")
def reinplace_relu(graph_module: GraphModule) -> GraphModule:
    """Let ``relu`` of a sum that nothing needs afterwards write into the memory of the sum."""
    order = {node: position for position, node in enumerate(graph_module.graph.nodes)}
    for node in list(graph_module.graph.nodes):
        if node.op != "call_function" or node.target is not torch.relu or len(node.args) != 1 or node.kwargs:
            continue
        total = node.args[0]
        if (
            not isinstance(total, Node)
            or total.op != "call_function"
            or total.target not in (operator.add, operator.sub)
        ):
            continue
        if any(order[user] > order[node] for user in total.users):
            continue
        node.target = torch.relu_
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module
