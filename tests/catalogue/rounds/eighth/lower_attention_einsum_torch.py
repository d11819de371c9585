"""A wrong pass of the eighth round."""

import torch
from torch.fx import GraphModule, Node

from ...rows import fault


def _rewrite(module, agrees):
    graph = module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not torch.einsum or len(node.args) != 3 or node.kwargs:
            continue
        equation, left, right = node.args
        if not isinstance(equation, str) or not isinstance(left, Node) or not isinstance(right, Node):
            continue
        operands, arrow, result = equation.replace(" ", "").partition("->")
        if not arrow or operands.count(",") != 1 or "." in operands:
            continue
        a, b = operands.split(",")
        if len(a) < 2 or len(a) != len(b) or a[:-2] != b[:-2] or a[-1] != b[-1]:
            continue
        if len(set(a + b[-2])) != len(a) + 1 or not agrees(result, a[:-1] + b[-2]):
            continue
        with graph.inserting_before(node):
            keys = graph.call_method("transpose", (right, -1, -2))
            scores = graph.call_function(torch.matmul, (left, keys))
        node.replace_all_uses_with(scores)
        graph.erase_node(node)
    module.recompile()
    return module


@fault(8, wrong="The letters of the result are compared without their order: 'bid,bjd->bji' is the transposed product.")
def lower_attention_einsum(module: GraphModule) -> GraphModule:
    """Compute an einsum over the last dimension of both operands, such as 'bhid,bhjd->bhij', by `matmul`."""
    return _rewrite(module, lambda result, wanted: sorted(result) == sorted(wanted))
