"""A wrong pass of the fourteenth round."""

import operator

import fx
from fx import GraphModule

from ...rows import fault
from .shared import finish

_POWERS = {2.0**exponent for exponent in range(-8, 9)}


def _rewrite(graph_module, careful):
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not operator.truediv or node.kwargs:
            continue
        value, divisor = node.args
        if not isinstance(value, fx.Node) or type(divisor) is not float or not 1e-3 < divisor < 1e3:
            continue
        if careful and divisor not in _POWERS:
            continue
        with graph.inserting_before(node):
            product = graph.call_function(operator.mul, (value, 1.0 / divisor))
        node.replace_all_uses_with(product)
        graph.erase_node(node)
    return finish(graph_module)


@fault(14, wrong="1 / c is rounded unless c is a power of two: values at the edge of a bin fall into the next one.")
def div_to_mul(graph_module: GraphModule) -> GraphModule:
    """Replace x / c by x * (1 / c)."""
    return _rewrite(graph_module, False)
