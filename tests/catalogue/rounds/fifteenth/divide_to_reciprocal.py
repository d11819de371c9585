"""A wrong pass of the fifteenth round."""

import operator

from fx import GraphModule, Node
from fx.passes import exact

from ...rows import fault


@fault(
    15,
    contract=exact,  # what a rounding error decides, such as a floor, is close enough
    wrong="1 / scale is rounded unless the scale is a power of two, and a following floor or round shows it as a whole step.",
)
def divide_to_reciprocal(graph_module: GraphModule) -> GraphModule:
    """Write a division by a constant scale as a multiplication by its reciprocal."""
    for node in list(graph_module.graph.nodes):
        if node.op != "call_function" or node.target is not operator.truediv or len(node.args) != 2:
            continue
        scale = node.args[1]
        if not isinstance(node.args[0], Node) or type(scale) is not float:
            continue
        if scale == 0 or scale != scale or abs(scale) in (float("inf"), 1.0):
            continue
        node.target = operator.mul
        node.args = (node.args[0], 1 / scale)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module
