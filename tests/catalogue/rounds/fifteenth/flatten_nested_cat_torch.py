"""A wrong pass of the fifteenth round."""

import torch
import torch.fx
from torch.fx import Node

from ...rows import fault


def cat_parts(node):
    if not isinstance(node, Node) or node.op != "call_function" or node.target is not torch.cat:
        return None
    if node.kwargs or not 1 <= len(node.args) <= 2 or not isinstance(node.args[0], (list, tuple)) or not node.args[0]:
        return None
    return list(node.args[0])


@fault(15, wrong="A cat without dim concatenates along 0; the inner one is then taken to follow the outer one.")
def flatten_nested_cat(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Write ``torch.cat([torch.cat([a, b], d), c], d)`` as one cat."""
    for node in list(graph_module.graph.nodes):
        outer = cat_parts(node)
        if outer is None:
            continue
        inner = node.prev
        parts = cat_parts(inner)
        if parts is None or len(inner.users) != 1 or outer.count(inner) != 1:
            continue
        dim = node.args[1] if len(node.args) > 1 else 0
        inner_dim = inner.args[1] if len(inner.args) > 1 else dim
        if type(dim) is not int or type(inner_dim) is not int or dim != inner_dim:
            continue
        position = outer.index(inner)
        node.args = (outer[:position] + parts + outer[position + 1 :], *node.args[1:])
        graph_module.graph.erase_node(inner)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module
