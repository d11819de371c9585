"""A right pass of the seventeenth round."""

import operator

from torch.fx import GraphModule, Node

from ...rows import sound


@sound(17)
def number_on_the_right(graph_module: GraphModule) -> GraphModule:
    """Write `2 * x` as `x * 2`, so that later passes look at one order only."""
    for node in graph_module.graph.nodes:
        if node.op != "call_function" or node.target not in (operator.add, operator.mul) or node.kwargs:
            continue
        left, right = node.args
        if type(left) in (int, float) and isinstance(right, Node):
            node.args = (right, left)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module
