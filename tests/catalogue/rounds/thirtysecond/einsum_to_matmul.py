"""A wrong pass of the thirtysecond round."""

import torch

import fx

from ...rows import fault
from .shared import calls, replace


@fault(
    32,
    wrong='An equation without an arrow: its output has the labels that occur once, in alphabetical order. Shows in torch.einsum("zi,ia", x, w), which is the transposed product, and in "bij,bjk", which sums over b.',
)
def einsum_to_matmul(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Replace an einsum of two operands that is a matrix product by matmul."""
    for node in list(graph_module.graph.nodes):
        if not calls(node, (torch.einsum,)) or node.kwargs or not isinstance(node.args[0], str):
            continue
        operands = node.args[1:]
        if len(operands) == 1 and isinstance(operands[0], (tuple, list)):
            operands = tuple(operands[0])
        equation = node.args[0].replace(" ", "")
        inputs, arrow, output = equation.partition("->")
        labels = inputs.split(",")
        if len(labels) != 2 or len(operands) != 2 or "." in equation:
            continue
        lhs, right = labels
        if len(lhs) < 2 or len(lhs) != len(right) or lhs[:-2] != right[:-2]:
            continue
        if len(set(lhs)) != len(lhs) or len(set(right)) != len(right) or lhs[-2] in right:
            continue
        transposed = lhs[-1] == right[-1]
        if not transposed and lhs[-1] != right[-2]:
            continue
        free = right[-2] if transposed else right[-1]
        if not arrow:
            output = lhs[:-1] + free
        if output != lhs[:-1] + free:
            continue
        with graph_module.graph.inserting_before(node):
            second = operands[1]
            if transposed:
                second = graph_module.graph.call_method("transpose", (second, -2, -1))
            product = graph_module.graph.call_function(torch.matmul, (operands[0], second))
        replace(node, product)
    graph_module.recompile()
    return graph_module
