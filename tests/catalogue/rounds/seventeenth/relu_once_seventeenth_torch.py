"""A right pass of the seventeenth round."""

import torch
from torch.fx import GraphModule, Node

from ...rows import sound
from .shared import may_write


def _relu(node) -> bool:
    return (
        isinstance(node, Node)
        and node.op == "call_function"
        and node.target is torch.relu
        and len(node.args) == 1
        and not node.kwargs
        and isinstance(node.args[0], Node)
    )


@sound(17)
def relu_once_seventeenth(graph_module: GraphModule) -> GraphModule:
    """Drop a ReLU of the result of a ReLU."""
    if may_write(graph_module):
        return graph_module
    for node in list(graph_module.graph.nodes):
        if _relu(node) and _relu(node.args[0]) and len(node.args[0].users) == 1:
            inner = node.args[0]
            node.args = inner.args
            graph_module.graph.erase_node(inner)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module
