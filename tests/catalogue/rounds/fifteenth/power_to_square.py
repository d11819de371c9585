"""A wrong pass of the fifteenth round."""

import torch

from fx import GraphModule, Node

from ...rows import fault


@fault(15, wrong="The exponent is compared by value: 2.0 turns integers into floats, 2 does not.")
def power_to_square(graph_module: GraphModule) -> GraphModule:
    """Write ``x.pow(2)`` and ``torch.pow(x, 2)`` as ``torch.square(x)``."""
    for node in list(graph_module.graph.nodes):
        is_power = (node.op == "call_method" and node.target == "pow") or (
            node.op == "call_function" and node.target is torch.pow
        )
        if not is_power or node.kwargs or len(node.args) != 2 or not isinstance(node.args[0], Node):
            continue
        if isinstance(node.args[1], Node) or node.args[1] != 2:
            continue
        with graph_module.graph.inserting_before(node):
            new = graph_module.graph.call_function(torch.square, (node.args[0],))
        node.replace_all_uses_with(new)
        graph_module.graph.erase_node(node)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module
