"""Right passes of the sixth round for fx, part 2."""

import operator

import torch
import torch.nn.functional as F

from ..rows import sound


def transposed_r08(node):
    """Return the operand of a transpose of the two dimensions, or None."""
    if not hasattr(node, "op") or node.kwargs:
        return None
    plain = (node.op == "call_method" and node.target == "t") or (node.op == "call_function" and node.target is torch.t)
    if plain and len(node.args) == 1:
        return node.args[0]
    swaps = (node.op == "call_method" and node.target == "transpose") or (
        node.op == "call_function" and node.target is torch.transpose
    )
    if swaps and len(node.args) == 3 and tuple(node.args[1:]) in ((0, 1), (1, 0), (-1, -2), (-2, -1)):
        return node.args[0]
    return None


def matrix_r08(graph_module, node):
    if not hasattr(node, "op") or node.op != "get_attr":
        return False
    value = graph_module
    for name in node.target.split("."):
        value = getattr(value, name, None)
    return type(value) is torch.nn.Parameter and value.dim() == 2 and value.dtype in (torch.float32, torch.float64)


@sound(6)
def matmul_weight_as_linear(graph_module):
    """Hand-written projections x @ w.t() become F.linear, which the quantizer and the exporter know."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        product = (node.op == "call_function" and node.target in (torch.matmul, operator.matmul)) or (
            node.op == "call_method" and node.target == "matmul"
        )
        if not product or node.kwargs or len(node.args) != 2 or not hasattr(node.args[0], "op"):
            continue
        x, flipped = node.args
        weight = transposed_r08(flipped)
        if weight is None or not matrix_r08(graph_module, weight) or len(flipped.users) != 1 or x is flipped:
            continue
        if node.prev is not flipped or any(n.op == "call_method" and n.target.endswith("_") for n in graph.nodes):
            continue
        with graph.inserting_before(node):
            linear = graph.call_function(F.linear, (x, weight))
        node.replace_all_uses_with(linear)
        graph.erase_node(node)
        graph.erase_node(flipped)
    graph.lint()
    graph_module.recompile()
    return graph_module
