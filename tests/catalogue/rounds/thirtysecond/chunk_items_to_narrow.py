"""A right pass of the thirtysecond round."""

import operator

import torch

import fx

from ...rows import sound
from .shared import argument, calls


# The size of a chunk is rounded up, and the last chunk may be smaller. Only for items that are counted from the
# front. The narrows are views like the chunks, made at the place of the chunk.
@sound(32)
def chunk_items_to_narrow(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Replace chunk by one narrow for each chunk that is used."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        if not calls(node, (torch.chunk,), ("chunk",)) or not node.args or not set(node.kwargs) <= {"chunks", "dim"}:
            continue
        count, dim = argument(node, 1, "chunks"), argument(node, 2, "dim", 0)
        if type(count) is not int or count < 1 or type(dim) is not int or not node.users:
            continue
        items = list(node.users)
        if not all(calls(item, (operator.getitem,)) and item.args[0] is node for item in items):
            continue
        if not all(type(item.args[1]) is int and 0 <= item.args[1] < count for item in items):
            continue
        x = node.args[0]
        with graph.inserting_before(node):
            size = graph.call_method("size", (x, dim))
            rounded = graph.call_function(operator.add, (size, count - 1))
            step = graph.call_function(operator.floordiv, (rounded, count))
            for item in items:
                start = graph.call_function(operator.mul, (step, item.args[1]))
                rest = graph.call_function(operator.sub, (size, start))
                length = graph.call_function(min, (step, rest))
                item.replace_all_uses_with(graph.call_method("narrow", (x, dim, start, length)))
        for item in items:
            graph.erase_node(item)
        graph.erase_node(node)
    graph_module.recompile()
    return graph_module
