"""A wrong pass of the thirtyfirst round."""

import operator

import torch
import torch.fx

from ...rows import fault


def _scaled(node):
    """(x, c) where node is x * c or c * x with a constant c."""
    if not isinstance(node, torch.fx.Node) or node.target is not operator.mul:
        return None
    left, right = node.args
    if isinstance(right, float) and isinstance(left, torch.fx.Node):
        return left, right
    if isinstance(left, float) and isinstance(right, torch.fx.Node):
        return right, left
    return None


def _hoist(gm, allowed):
    for node in list(gm.graph.nodes):
        if not (node.op == "call_method" and node.target == "amax") and node.target is not torch.amax:
            continue
        if not node.args or node.all_input_nodes != [node.args[0]] or "out" in node.kwargs:
            continue
        scaled = _scaled(node.args[0])
        if scaled is None or len(node.args[0].users) > 1 or not allowed(scaled[1]):
            continue
        product = node.args[0]
        with gm.graph.inserting_before(product):
            largest = gm.graph.create_node(node.op, node.target, (scaled[0], *node.args[1:]), dict(node.kwargs))
            result = gm.graph.call_function(operator.mul, (largest, scaled[1]))
        node.replace_all_uses_with(result)
        gm.graph.erase_node(node)
        gm.graph.erase_node(product)
    gm.graph.lint()
    gm.recompile()
    return gm


@fault(
    31,
    wrong="amax(x * c) becomes amax(x) * c also for a negative c, where the largest of the scaled values is the "
    "smallest of x.",
)
def hoist_scale(gm: torch.fx.GraphModule):
    """Move a constant factor behind a maximum over a dimension: it then scales the smaller tensor."""
    return _hoist(gm, lambda factor: factor != 0)
