"""A right pass of the fifteenth round."""

import operator

import torch
import torch.fx

from ...rows import sound


@sound(15)
def shape_to_size_fifteenth(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Write ``x.shape[i]`` as ``x.size(i)``."""
    for node in list(graph_module.graph.nodes):
        if node.op != "call_function" or node.target is not operator.getitem or type(node.args[1]) is not int:
            continue
        shape = node.args[0]
        if shape.op != "call_function" or shape.target is not getattr or shape.args[1:] != ("shape",):
            continue
        if len(shape.users) != 1 or shape.next is not node:
            continue
        with graph_module.graph.inserting_before(node):
            new = graph_module.graph.call_method("size", (shape.args[0], node.args[1]))
        node.replace_all_uses_with(new)
        graph_module.graph.erase_node(node)
        graph_module.graph.erase_node(shape)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module
