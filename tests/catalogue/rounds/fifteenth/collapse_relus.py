"""A right pass of the fifteenth round."""

import torch

from fx import GraphModule, Node

from ...rows import sound

RELUS = (torch.relu,)


@sound(15)
def collapse_relus(graph_module: GraphModule) -> GraphModule:
    """Drop a functional ``relu`` of the result of a functional ``relu``."""
    for node in list(graph_module.graph.nodes):
        if node.op != "call_function" or node.target not in RELUS or len(node.args) != 1 or node.kwargs:
            continue
        first = node.args[0]
        if not isinstance(first, Node) or first.op != "call_function" or first.target not in RELUS:
            continue
        if len(first.args) != 1 or first.kwargs or len(first.users) != 1:
            continue
        node.replace_all_uses_with(first)
        graph_module.graph.erase_node(node)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module
