"""A wrong pass of the thirtysecond round."""

import operator

import torch

import fx

from ...rows import fault
from .shared import argument, calls


@fault(
    32,
    wrong="Sizes that the number of chunks does not divide: chunk rounds the size of a chunk up. Shows in a model that halves 5 channels (chunks of 3 and 2).",
)
def chunks_to_narrow(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Replace chunk by one narrow for each chunk that is used."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        if not calls(node, (torch.chunk,), ("chunk",)) or not node.args:
            continue
        count, dim = argument(node, 1, "chunks"), argument(node, 2, "dim", 0)
        if type(count) is not int or type(dim) is not int or not node.users:
            continue
        if not all(calls(user, (operator.getitem,)) and type(user.args[1]) is int for user in node.users):
            continue
        if not all(0 <= user.args[1] < count for user in node.users):
            continue
        items = list(node.users)
        with graph.inserting_before(node):
            size = graph.call_method("size", (node.args[0], dim))
            step = graph.call_function(operator.floordiv, (size, count))
            for item in items:
                start = graph.call_function(operator.mul, (step, item.args[1]))
                item.replace_all_uses_with(graph.call_method("narrow", (node.args[0], dim, start, step)))
        for item in items:
            graph.erase_node(item)
        graph.erase_node(node)
    graph_module.recompile()
    return graph_module
