"""A right pass of the sixteenth round."""

import torch

from fx import GraphModule, Node

from ...rows import sound
from .shared import finish


def _rewrite(graph_module: GraphModule) -> GraphModule:
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not torch.transpose or node.kwargs or len(node.args) != 3:
            continue
        first = node.args[0]
        if not isinstance(first, Node) or first.op != "call_function" or first.target is not torch.transpose:
            continue
        if first.kwargs or len(first.args) != 3 or len(first.users) != 1 or node.prev is not first:
            continue
        if not all(type(dim) is int for dim in first.args[1:] + node.args[1:]):
            continue
        if set(first.args[1:]) != set(node.args[1:]):
            continue
        value, a, b = first.args
        with graph.inserting_before(node):
            once = graph.call_function(torch.transpose, (value, a, a))
            same = graph.call_function(torch.transpose, (once, b, b))
        node.replace_all_uses_with(same)
        graph.erase_node(node)
        graph.erase_node(first)
    return finish(graph_module)


@sound(16)
def merge_equal_transposes(graph_module: GraphModule) -> GraphModule:
    """Merges two transposes of the same two dims, which undo each other, into a view of the tensor as it is."""
    return _rewrite(graph_module)
